"""The one module that talks to Kubernetes: objects are plain dictionaries, errors are `ApiError`.

Errors say whether asking again can help; callers decide when.
"""

import json
import re
import socket
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Self

import urllib3
import websocket
from kubernetes import client, config
from kubernetes.client.exceptions import ApiException
from kubernetes.utils import quantity

from ctr_pipeline.errors import CtrPipelineError

_SECONDS = 10.0
_CONNECT_SECONDS = 5.0
_WATCH_SLACK_SECONDS = 15.0
_CONNECTIONS = 16
"""Connections that are kept: a launcher creates and deletes several pods at once."""
_PASSING = frozenset({0, 408, 429, 500, 502, 503, 504})

_IN, _OUT, _ERRORS, _STATUS = 0, 1, 2, 3
_DATA = frozenset({websocket.ABNF.OPCODE_BINARY, websocket.ABNF.OPCODE_TEXT})
_KEPT_BYTES = 1 << 16
_FRAME_BYTES = 1 << 16

_PATHS = {
    "Pod": "/api/v1/namespaces/{namespace}/pods",
    "ConfigMap": "/api/v1/namespaces/{namespace}/configmaps",
    "Secret": "/api/v1/namespaces/{namespace}/secrets",
    "Service": "/api/v1/namespaces/{namespace}/services",
    "ServiceAccount": "/api/v1/namespaces/{namespace}/serviceaccounts",
    "PersistentVolumeClaim": "/api/v1/namespaces/{namespace}/persistentvolumeclaims",
    "ResourceQuota": "/api/v1/namespaces/{namespace}/resourcequotas",
    "Role": "/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}/roles",
    "RoleBinding": "/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}/rolebindings",
    "NetworkPolicy": "/apis/networking.k8s.io/v1/namespaces/{namespace}/networkpolicies",
    "LocalQueue": "/apis/kueue.x-k8s.io/v1beta2/namespaces/{namespace}/localqueues",
    "APIGroup": "/apis",
    "Event": "/api/v1/namespaces/{namespace}/events",
    "Job": "/apis/batch/v1/namespaces/{namespace}/jobs",
    "StorageClass": "/apis/storage.k8s.io/v1/storageclasses",
    "SelfSubjectAccessReview": "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews",
    "SelfSubjectRulesReview": "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews",
    "SelfSubjectReview": "/apis/authentication.k8s.io/v1/selfsubjectreviews",
}


def parse_quantity(text: float | str) -> Decimal:
    """The number that a quantity such as `500m` or `4Gi` means."""
    return Decimal(quantity.parse_quantity(text))  # type: ignore[no-untyped-call]


class ApiError(CtrPipelineError):
    """A call to Kubernetes that failed.

    Args:
        status: HTTP status; 0: nobody answered.
    """

    def __init__(self, status: int, message: str) -> None:
        self.status = status
        super().__init__(f"Kubernetes: {message}")

    @property
    def exceeds_quota(self) -> bool:
        """Whether a quota of the namespace has no room now."""
        return self.status == 403 and "exceeded quota" in self.message

    @property
    def lacks_account(self) -> bool:
        """Whether the service account of a pod is not there; a new namespace gets its own later."""
        return self.status == 403 and "error looking up service account" in self.message

    @property
    def lacks_right(self) -> bool:
        """Whether the caller may not do it; an API server that has just started knows no rights."""
        return self.status == 403 and " cannot " in self.message and 'resource "' in self.message

    @property
    def may_pass(self) -> bool:
        """Whether the same call may succeed later."""
        return self.status in _PASSING or self.exceeds_quota or self.lacks_account


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
        """The API with the service account of this pod."""
        settings = client.Configuration()
        settings.connection_pool_maxsize = _CONNECTIONS
        try:
            config.load_incluster_config(client_configuration=settings)  # type: ignore[no-untyped-call]
        except config.ConfigException as error:
            raise CtrPipelineError(f"this pod cannot talk to Kubernetes: {error}") from error
        return cls(client.ApiClient(settings), namespace)

    @classmethod
    def of_user(cls, namespace: str | None) -> Self:
        """The API with the credentials of kubectl; None: the namespace of its current context."""
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

    def list(self, kind: str, selector: str = "", *, fields: str = "") -> Listed:
        """The objects with these labels and fields; without selectors, all."""
        query = [("labelSelector", selector), ("fieldSelector", fields)]
        found = self._json("GET", self._path(kind), query)
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
        with self.run(pod, command) as running:
            output = b"".join(running)
        return output.decode("utf-8", "replace"), running.errors, running.exit_code

    def run(self, pod: str, command: Sequence[str], *, has_input: bool = False) -> "RunningCommand":
        """Starts a command in a pod; its output comes as it is written.

        Args:
            has_input: Something is written to it.
        """
        from kubernetes.stream import stream

        try:
            connection = stream(
                client.CoreV1Api(self._api).connect_get_namespaced_pod_exec,
                pod,
                self.namespace,
                command=list(command),
                stdin=has_input,
                stdout=True,
                stderr=True,
                tty=False,
                _preload_content=False,
            )
        except ApiException as error:
            raise ApiError(error.status or 0, _reason_of(error)) from error
        return RunningCommand(connection)

    def connect(self, pod: str, port: int) -> socket.socket:
        """A connection to a port of a pod, through the API server.

        Raises:
            ApiError: There is no such pod, or the user may not forward ports to it.
        """
        from kubernetes.stream import portforward

        try:
            forwarded = portforward(
                client.CoreV1Api(self._api).connect_get_namespaced_pod_portforward,
                pod,
                self.namespace,
                ports=str(port),
            )
        except ApiException as error:
            raise ApiError(error.status or 0, _reason_of(error)) from error
        found: socket.socket = forwarded.socket(port)
        return found

    def version(self) -> str:
        """The version of the API server, such as `v1.36.3`."""
        return str(self._json("GET", "/version")["gitVersion"])

    def may(self, verb: str, group: str, resource: str) -> bool:
        """Whether the user may do it in the namespace; `resource` may be `pods/exec`."""
        name, _, subresource = resource.partition("/")
        attributes = {"namespace": self.namespace, "verb": verb, "group": group}
        attributes |= {"resource": name, "subresource": subresource}
        review = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": attributes},
        }
        return bool(self.create(review)["status"].get("allowed"))

    def rules_of(self, account: str) -> Sequence[dict[str, Any]]:
        """What a service account of the namespace may do, as rules of roles.

        Raises:
            ApiError: Status 403: the user may not act as that account.
        """
        review = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectRulesReview",
            "spec": {"namespace": self.namespace},
        }
        user = f"system:serviceaccount:{self.namespace}:{account}"
        path = self._path("SelfSubjectRulesReview")
        found = self._json("POST", path, (), review, as_user=user)
        return tuple(found["status"].get("resourceRules") or ())

    def user_name(self) -> str:
        """The name by which the cluster knows the user."""
        review = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
        return str(self.create(review)["status"]["userInfo"]["username"])

    def _path(self, kind: str) -> str:
        return _PATHS[kind].format(namespace=self.namespace)

    def _json(
        self,
        method: str,
        path: str,
        query: Sequence[tuple[str, str]] = (),
        body: Mapping[str, Any] | None = None,
        *,
        as_user: str | None = None,
    ) -> dict[str, Any]:
        response = self._call(method, path, query, body, read=_SECONDS, as_user=as_user)
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
        as_user: str | None = None,
    ) -> urllib3.HTTPResponse:
        kind = "application/merge-patch+json" if method == "PATCH" else "application/json"
        given = {"Accept": "application/json", "Content-Type": kind}
        serialized = self._api.param_serialize(
            method,
            path,
            query_params=list(query),
            header_params=given if as_user is None else {**given, "Impersonate-User": as_user},
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


class RunningCommand:
    """A command in a pod: iterates over its stdout; the rest is known at the end.

    A context manager that ends the connection, and with it what writes to it.

    Args:
        connection: The client's connection: its own methods would keep all that they read.

    Attributes:
        exit_code: Meaningful once the iteration has ended.
    """

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._errors = b""
        self._ended = False
        self.exit_code = 0

    @property
    def errors(self) -> str:
        """The last that it wrote to stderr."""
        return self._errors.decode("utf-8", "replace")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self._connection.close()

    def write(self, data: bytes) -> None:
        """Sends to its stdin.

        Raises:
            ApiError: The connection has ended.
        """
        try:
            for start in range(0, len(data), _FRAME_BYTES):
                frame = bytes([_IN]) + data[start : start + _FRAME_BYTES]
                self._connection.sock.send_binary(frame)
        except (websocket.WebSocketException, OSError) as error:
            raise ApiError(0, f"the connection to the pod broke off ({error})") from error

    def __iter__(self) -> Iterator[bytes]:
        """Blocks of stdout.

        Raises:
            ApiError: The connection ended before the command did.
        """
        try:
            while not self._ended:
                operation, frame = self._connection.sock.recv_data_frame(True)
                if operation == websocket.ABNF.OPCODE_CLOSE:
                    raise ApiError(0, "the connection to the pod broke off")
                if operation not in _DATA or not frame.data:
                    continue
                channel, data = frame.data[0], frame.data[1:]
                if channel == _OUT:
                    yield data
                elif channel == _ERRORS:
                    self._errors = (self._errors + data)[-_KEPT_BYTES:]
                elif channel == _STATUS:
                    self.exit_code, self._ended = _exit_code(json.loads(data)), True
        except (websocket.WebSocketException, OSError) as error:
            raise ApiError(0, f"the connection to the pod broke off ({error})") from error


def _exit_code(status: Mapping[str, Any]) -> int:
    if status["status"] == "Success":
        return 0
    for cause in status.get("details", {}).get("causes", ()):
        if cause.get("reason") == "ExitCode":
            return int(cause["message"])
    raise ApiError(status.get("code", 0), status.get("message", "the command did not run"))


def _reason_of(error: ApiException) -> str:
    """What the server said; a connection that it refused holds that in a text of its own."""
    found = re.search(r'"message":"((?:[^"\\]|\\.)*)"', str(error.reason))
    return found[1] if found else str(error.reason)


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
