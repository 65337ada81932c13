"""The one module that talks to Kubernetes: objects are plain dictionaries, errors are `ApiError`.

Errors say whether asking again can help; callers decide when.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import urllib3
from kubernetes import client, config
from kubernetes.client.exceptions import ApiException

from ctr_pipeline.errors import CtrPipelineError

_SECONDS = 10.0
_CONNECT_SECONDS = 5.0
_WATCH_SLACK_SECONDS = 15.0
_PASSING = frozenset({0, 408, 429, 500, 502, 503, 504})

_PATHS = {
    "Pod": "/api/v1/namespaces/{namespace}/pods",
    "ConfigMap": "/api/v1/namespaces/{namespace}/configmaps",
    "Secret": "/api/v1/namespaces/{namespace}/secrets",
    "ServiceAccount": "/api/v1/namespaces/{namespace}/serviceaccounts",
    "PersistentVolumeClaim": "/api/v1/namespaces/{namespace}/persistentvolumeclaims",
    "Role": "/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}/roles",
    "RoleBinding": "/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}/rolebindings",
    "NetworkPolicy": "/apis/networking.k8s.io/v1/namespaces/{namespace}/networkpolicies",
    "Job": "/apis/batch/v1/namespaces/{namespace}/jobs",
    "SelfSubjectAccessReview": "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews",
}


class ApiError(CtrPipelineError):
    """A call to Kubernetes that failed.

    Args:
        status: HTTP status; 0: nobody answered.
    """

    def __init__(self, status: int, message: str) -> None:
        self.status = status
        super().__init__(f"Kubernetes: {message}")

    @property
    def may_pass(self) -> bool:
        """Whether the same call may succeed later."""
        is_quota = self.status == 403 and "exceeded quota" in self.message
        return self.status in _PASSING or is_quota


@dataclass(frozen=True)
class Listed:
    """Objects, and the version of the cluster's state from which a watch goes on."""

    items: tuple[dict[str, Any], ...]
    version: str


class KubernetesApi:
    """Calls to one namespace.

    Args:
        api: The client with its credentials.
    """

    def __init__(self, api: client.ApiClient, namespace: str) -> None:
        self._api = api
        self.namespace = namespace

    @classmethod
    def in_pod(cls, namespace: str) -> Self:
        """With the service account of this pod."""
        settings = client.Configuration()
        try:
            config.load_incluster_config(client_configuration=settings)  # type: ignore[no-untyped-call]
        except config.ConfigException as error:
            raise CtrPipelineError(f"this pod cannot talk to Kubernetes: {error}") from error
        return cls(client.ApiClient(settings), namespace)

    @classmethod
    def of_user(cls, namespace: str | None) -> Self:
        """With the credentials of kubectl; None: the namespace of its current context."""
        settings = client.Configuration()
        try:
            config.load_kube_config(client_configuration=settings)  # type: ignore[no-untyped-call]
            _, context = config.list_kube_config_contexts()  # type: ignore[no-untyped-call]
        except (config.ConfigException, OSError) as error:
            raise CtrPipelineError(
                f"there are no credentials for a cluster: {error}",
                remedy="Set KUBECONFIG, or try 'kubectl get pods'",
            ) from error
        found = namespace or context["context"].get("namespace") or "default"
        return cls(client.ApiClient(settings), found)

    def create(self, manifest: Mapping[str, Any], *, dry_run: bool = False) -> dict[str, Any]:
        """Creates an object, or has the server check that it could."""
        query = [("dryRun", "All"), ("fieldValidation", "Strict")] if dry_run else []
        return self._json("POST", self._path(manifest["kind"]), query, manifest)

    def get(self, kind: str, name: str) -> dict[str, Any]:
        """One object."""
        return self._json("GET", f"{self._path(kind)}/{name}")

    def list(self, kind: str, selector: str) -> Listed:
        """The objects with these labels."""
        found = self._json("GET", self._path(kind), [("labelSelector", selector)])
        return Listed(tuple(found.get("items") or ()), found["metadata"]["resourceVersion"])

    def patch(self, kind: str, name: str, patch: Mapping[str, Any]) -> dict[str, Any]:
        """Merges into an object, as RFC 7386 says."""
        return self._json("PATCH", f"{self._path(kind)}/{name}", (), patch)

    def delete(
        self,
        kind: str,
        name: str,
        *,
        uid: str | None = None,
        grace_seconds: int | None = None,
        foreground: bool = False,
    ) -> None:
        """Deletes an object; nothing happens if it is gone, or another one has its name.

        Args:
            uid: Identifies the object that is meant; None: whatever has the name.
            grace_seconds: For a pod to end by itself; None: as its manifest says.
            foreground: What belongs to it goes first.
        """
        body: dict[str, Any] = {"propagationPolicy": "Foreground" if foreground else "Background"}
        if uid is not None:
            body["preconditions"] = {"uid": uid}
        if grace_seconds is not None:
            body["gracePeriodSeconds"] = grace_seconds
        try:
            self._json("DELETE", f"{self._path(kind)}/{name}", (), body)
        except ApiError as error:
            if error.status not in {404, 409}:
                raise

    def watch(
        self, kind: str, selector: str, version: str, *, seconds: int
    ) -> Iterator[tuple[str, dict[str, Any]]]:
        """Changes from a version on, as (type, object), until the time is over or the stream ends.

        The server may end a stream at any time without an error: list again, then watch again.

        Raises:
            ApiError: Status 410: the version is too old.
        """
        query = [
            ("labelSelector", selector),
            ("watch", "true"),
            ("resourceVersion", version),
            ("timeoutSeconds", str(seconds)),
        ]
        response = self._call("GET", self._path(kind), query, read=seconds + _WATCH_SLACK_SECONDS)
        try:
            for line in _lines(response):
                event = json.loads(line)
                if event["type"] == "ERROR":
                    status = event["object"]
                    raise ApiError(status.get("code", 0), status.get("message", "watch failed"))
                yield event["type"], event["object"]
        except (urllib3.exceptions.HTTPError, json.JSONDecodeError) as error:
            raise ApiError(0, f"the watch broke off ({error})") from error
        finally:
            response.close()

    def read_log(self, pod: str, *, num_lines: int, follow: bool) -> Iterator[bytes]:
        """What a pod wrote, and with `follow` what it goes on to write."""
        query = [("tailLines", str(num_lines)), ("follow", str(follow).lower())]
        response = self._call("GET", f"{self._path('Pod')}/{pod}/log", query, read=None)
        try:
            yield from response.stream(1 << 16, decode_content=True)
        except urllib3.exceptions.HTTPError as error:
            raise ApiError(0, f"the log broke off ({error})") from error
        finally:
            response.close()

    def execute(self, pod: str, command: Sequence[str]) -> tuple[str, str, int]:
        """Runs a command in a pod; returns its stdout, stderr and exit code."""
        from kubernetes.stream import stream

        try:
            socket = stream(
                client.CoreV1Api(self._api).connect_get_namespaced_pod_exec,
                pod,
                self.namespace,
                command=list(command),
                stdin=False,
                stdout=True,
                stderr=True,
                tty=False,
                _preload_content=False,
            )
            socket.run_forever()
        except ApiException as error:
            raise ApiError(error.status or 0, str(error.reason)) from error
        return socket.read_stdout() or "", socket.read_stderr() or "", socket.returncode or 0

    def may(self, verb: str, group: str, resource: str, subresource: str = "") -> bool:
        """Whether the user may do it in the namespace."""
        attributes = {"namespace": self.namespace, "verb": verb, "group": group}
        attributes |= {"resource": resource, "subresource": subresource}
        review = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": attributes},
        }
        return bool(self.create(review)["status"].get("allowed"))

    def _path(self, kind: str) -> str:
        return _PATHS[kind].format(namespace=self.namespace)

    def _json(
        self,
        method: str,
        path: str,
        query: Sequence[tuple[str, str]] = (),
        body: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        response = self._call(method, path, query, body, read=_SECONDS)
        try:
            found: dict[str, Any] = json.loads(response.data)
        except (urllib3.exceptions.HTTPError, json.JSONDecodeError) as error:
            raise ApiError(0, f"an answer broke off ({error})") from error
        return found

    def _call(
        self,
        method: str,
        path: str,
        query: Sequence[tuple[str, str]] = (),
        body: Mapping[str, Any] | None = None,
        *,
        read: float | None,
    ) -> urllib3.HTTPResponse:
        kind = "application/merge-patch+json" if method == "PATCH" else "application/json"
        serialized = self._api.param_serialize(
            method,
            path,
            query_params=list(query),
            header_params={"Accept": "application/json", "Content-Type": kind},
            body=None if body is None else dict(body),
            auth_settings=["BearerToken"],
        )
        verb, url, headers, _, _ = serialized
        data = None if body is None else json.dumps(body).encode()
        try:
            # The client's own methods read JSON into its models and refuse some patches.
            response = self._api.rest_client.pool_manager.request(
                verb,
                url,
                body=data,
                headers=headers,
                timeout=urllib3.Timeout(connect=_CONNECT_SECONDS, read=read),
                preload_content=False,
                retries=False,
            )
        except urllib3.exceptions.HTTPError as error:
            raise ApiError(0, f"the API server does not answer ({error})") from error
        if 200 <= response.status < 300:
            return response  # type: ignore[return-value]
        raise ApiError(response.status, _message_of(response))


def _lines(response: urllib3.HTTPResponse) -> Iterator[bytes]:
    rest = b""
    for block in response.stream(1 << 16, decode_content=True):
        *lines, rest = (rest + block).split(b"\n")
        yield from (line for line in lines if line)


def _message_of(response: Any) -> str:
    try:
        text = response.data.decode("utf-8", "replace")
    except urllib3.exceptions.HTTPError:
        return f"status {response.status}"
    try:
        return str(json.loads(text)["message"])
    except (ValueError, KeyError, TypeError):
        return text.strip() or f"status {response.status}"
