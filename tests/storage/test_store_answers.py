"""What the answers of an S3 server mean, each of them from the client's own errors."""

import os
from itertools import count

import pytest

from ctr_pipeline.errors import StorageError
from ctr_pipeline.storage.object_store import ObjectStore, Patience
from ctr_pipeline.storage.protocol import (
    ObjectTruncatedError,
    StorageAwayError,
    StorageDeniedError,
)
from ctr_pipeline.storage.store_answers import Answer, explain
from tests.storage.http_faults import Fault, FaultyStore

ADDRESS = "s3://bucket/runs/clicks"
IMPATIENT = Patience(first_pause_seconds=0.01, give_up_seconds=0.03)
"""For one attempt."""
EVER = 1000


@pytest.fixture
def variables(monkeypatch):
    """Sets the variables of S3, and no others."""
    for old in [one for one in os.environ if one.startswith("AWS_")]:
        monkeypatch.delenv(old)

    def set_all(**values):
        values = {
            "ENDPOINT_URL": "http://127.0.0.1:9",
            "ALLOW_HTTP": "true",
            "ACCESS_KEY_ID": "AKID",
            "SECRET_ACCESS_KEY": "secret",
            "REGION": "us-east-1",
            **values,
        }
        for name, value in values.items():
            if value is None:
                monkeypatch.delenv(f"AWS_{name}", raising=False)
            else:
                monkeypatch.setenv(f"AWS_{name}", value)

    return set_all


@pytest.fixture(scope="module")
def started():
    found = FaultyStore(lambda: "127.0.0.1:9")
    yield found
    found.close()


@pytest.fixture
def server(started, variables):
    """A server that answers as it is told, and has nothing."""
    variables(ENDPOINT_URL=f"http://{started.address}")
    started.trouble()
    return started


def stream(store):
    with store.create("a") as file:
        file.write(b"x")


CALLS = {
    "list": ("GET", lambda store: store.list("manifests")),
    "read": ("GET", lambda store: store.read("a")),
    "read_range": ("GET", lambda store: store.read_range("a", 0, 1)),
    "stat": ("HEAD", lambda store: store.stat("a")),
    "write": ("PUT", lambda store: store.write("a", b"x")),
    "put_if_absent": ("PUT", lambda store: store.put_if_absent("a", b"x")),
}
DENIED = r"the store refuses it \({}: planned\)\. Check the credentials .*AWS_ACCESS_KEY_ID"


@pytest.mark.parametrize(
    ("fault", "error", "says"),
    [
        (
            {"status": 403, "code": "AccessDenied"},
            StorageDeniedError,
            DENIED.format("AccessDenied"),
        ),
        (
            {"status": 403, "code": "InvalidAccessKeyId"},
            StorageDeniedError,
            DENIED.format("InvalidAccessKeyId"),
        ),
        (
            {"status": 401, "code": "Unauthorized"},
            StorageDeniedError,
            DENIED.format("Unauthorized"),
        ),
        (
            {"status": 403, "code": "RequestTimeTooSkewed"},
            StorageDeniedError,
            "signed at another time than its own. Set the clock of this machine",
        ),
        (
            {"status": 400, "code": "ExpiredToken"},
            StorageDeniedError,
            r"no longer valid \(ExpiredToken: planned\)\. Renew the credentials",
        ),
        (
            {"status": 301, "code": "PermanentRedirect"},
            StorageError,
            ": the bucket is not in the region us-east-1. Set AWS_REGION to the region",
        ),
        (
            {
                "status": 400,
                "code": "AuthorizationHeaderMalformed",
                "more": "<Region>eu-west-1</Region>",
            },
            StorageError,
            "is not in the region us-east-1 but in eu-west-1. Set AWS_REGION=eu-west-1",
        ),
        ({"status": 404, "code": "NoSuchBucket"}, StorageError, ": the bucket is not there"),
        (
            {"status": 400, "code": "EntityTooLarge"},
            StorageError,
            r"does not do it \(EntityTooLarge: planned\)\. Check the address, the region",
        ),
        ({"status": 416, "code": "InvalidRange"}, ObjectTruncatedError, "ends too early"),
    ],
)
@pytest.mark.parametrize("call", ["list", "read_range", "put_if_absent"])
def test_an_answer_is_told_at_once_with_place_and_remedy(server, fault, error, says, call):
    method, ask = CALLS[call]
    server.trouble(Fault(method, EVER, **fault))
    with pytest.raises(error, match=f"^{ADDRESS}.*{says}") as caught:
        ask(ObjectStore(ADDRESS))
    assert len(server.requests) == 1
    assert server.address not in str(caught.value)


@pytest.mark.parametrize("call", CALLS)
def test_a_store_without_an_answer_is_told_after_its_time(server, call):
    method, ask = CALLS[call]
    seconds = count()
    patience = Patience(give_up_seconds=3, now=lambda: next(seconds), sleep=lambda _: None)
    server.trouble(Fault(method, EVER, status=503))
    with pytest.raises(
        StorageAwayError, match=r"does not answer \((SlowDown|status 503)"
    ) as caught:
        ask(ObjectStore(ADDRESS, patience=patience))
    assert caught.value.remedy == "Check the network and the endpoint"
    assert len(server.requests) == 3


def test_a_stream_is_refused_as_a_request_is(server):
    server.trouble(Fault("POST", EVER, status=403, code="AccessDenied"))
    with pytest.raises(StorageDeniedError, match=DENIED.format("AccessDenied")):
        stream(ObjectStore(ADDRESS))


def test_a_silent_store_is_told_while_it_is_waited_for(variables, caplog):
    variables()
    seconds = count(step=7)
    patience = Patience(give_up_seconds=60, now=lambda: next(seconds), sleep=lambda _: None)
    with pytest.raises(
        StorageAwayError,
        match=r"/a: the store does not answer \(127\.0\.0\.1:9: Connection refused",
    ):
        ObjectStore(ADDRESS, patience=patience).read("a")
    (said,) = (one.getMessage() for one in caplog.records)
    assert said.endswith("does not answer (Connection refused); trying for 46 s more")


def test_a_host_without_an_address_is_told(variables):
    variables(ENDPOINT_URL="http://no-such-host.invalid:9000")
    with pytest.raises(StorageAwayError, match=r"no-such-host\.invalid:9000: its name cannot be"):
        ObjectStore(ADDRESS, patience=IMPATIENT).read("a")


def test_credentials_that_are_nowhere_are_told_at_once(variables):
    variables(ACCESS_KEY_ID=None, SECRET_ACCESS_KEY=None, METADATA_ENDPOINT="http://127.0.0.1:9")
    with pytest.raises(
        StorageDeniedError,
        match=r"there are no credentials .*Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
    ):
        ObjectStore(ADDRESS).list("")


@pytest.mark.parametrize(
    ("scheme", "remedy"),
    [
        ("gs", "Set GOOGLE_APPLICATION_CREDENTIALS in the environment"),
        (
            "abfss",
            "Set AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY in the environment",
        ),
    ],
)
def test_error_names_credentials_when_a_cloud_speaks_of_its_machine(scheme, remedy):
    request = "http://169.254.169.254/computeMetadata/v1/token?audience=https%3A%2F%2Fwww"
    said = (
        f"Generic GCS error: Error performing token request: Error performing GET {request} in "
        "1.5ms - Server returned non-2xx status code: 404 Not Found: no such account"
    )
    error = explain(Answer.of(ValueError(said)), address=f"{scheme}://bucket/run", key="a")
    assert str(error) == (
        f"{scheme}://bucket/run: there are no credentials in the environment, and this machine has "
        f"no identity of its own (status 404 Not Found). {remedy}"
    )


@pytest.mark.parametrize(
    ("variable", "value", "says"),
    [
        ("ENDPOINT_URL", "127.0.0.1:9000", "AWS_ENDPOINT_URL .*no address of a server"),
        ("ENDPOINT_URL", "", "AWS_ENDPOINT_URL .*no address of a server.*or unset it"),
        ("ENDPOINT_URL", "ftp://host", "no address of a server"),
        ("ENDPOINT_URL", "http://host:99999", "no address of a server"),
        ("ENDPOINT_URL", "http://[::1", "no address of a server"),
        ("ENDPOINT_URL", "http://host:9000\n", "no address of a server"),
        ("ACCESS_KEY_ID", "AKID-hunter2\n", "AWS_ACCESS_KEY_ID .*a line end"),
        ("SECRET_ACCESS_KEY", "hunter2 ", "AWS_SECRET_ACCESS_KEY .*holds a blank"),
        ("SESSION_TOKEN", "hünter2", "AWS_SESSION_TOKEN .*outside ASCII"),
        ("REGION", "us east", "AWS_REGION .*holds a blank"),
    ],
)
def test_variables_that_no_request_can_hold_are_named_without_their_values(
    variables, variable, value, says
):
    variables(**{variable: value})
    with pytest.raises(StorageError, match=says) as caught:
        ObjectStore(ADDRESS)
    assert "nter2" not in str(caught.value)


def test_an_address_without_a_bucket_is_told(variables):
    variables()
    with pytest.raises(StorageError, match=r"cannot be opened .*Write it as s3://bucket/prefix"):
        ObjectStore("s3:///run")


def test_a_server_that_speaks_no_tls_is_told(server, variables):
    variables(ENDPOINT_URL=f"https://{server.address}")
    with pytest.raises(StorageError, match=r"does not speak TLS.*Write the endpoint as http://"):
        ObjectStore(ADDRESS).read("a")
