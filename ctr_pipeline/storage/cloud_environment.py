"""The variables of the environment by which clouds are reached, and what is wrong with them."""

import os
import re
from collections.abc import Mapping
from urllib.parse import urlsplit

from ctr_pipeline.errors import StorageError

_AWS = "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
_AZURE = "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY"
_CREDENTIALS: Mapping[str, str] = {
    "s3": _AWS,
    "s3a": _AWS,
    "gs": "GOOGLE_APPLICATION_CREDENTIALS",
    "az": _AZURE,
    "abfs": _AZURE,
    "abfss": _AZURE,
}
"""Variables by the schemes of addresses."""

STORES = ("s3", "gs", "az")
"""Schemes by which stores are also written; the others are names that some tools give them."""

WEB_SCHEMES = ("http", "https")
SCHEMES = (*_CREDENTIALS, *WEB_SCHEMES)
"""Schemes of addresses that rows are read from."""

_ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
_SENT = (
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "AWS_REGION",
    "AWS_DEFAULT_REGION",
)
"""Values that requests hold as they are."""
_PLAIN = re.compile(r"[!-~]+")


def credentials_of(address: str) -> str:
    """The variables that hold the credentials for an address."""
    return _CREDENTIALS[address.partition("://")[0]]


def is_web(address: str) -> bool:
    """Whether a plain web server is asked, which has no credentials and lists nothing."""
    return address.startswith(WEB_SCHEMES)


def remedy_of(address: str) -> str:
    """What to do where an address needs credentials."""
    if is_web(address):
        return "Name an address that needs no password, or download the file"
    return f"Set {credentials_of(address)} in the environment"


def region() -> str:
    """The region that requests to S3 are signed for."""
    return os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or "us-east-1"


def check_environment(address: str) -> None:
    """Refuses what the client of S3 would send as it is, or stop at.

    Args:
        address: With one of `SCHEMES`.

    Raises:
        StorageError: A variable holds a blank, a line end, or an endpoint that is no address of a
            server. The message names it and not its value.
    """
    if not address.startswith(("s3://", "s3a://")):
        return
    for name in _ENDPOINTS:
        if name in os.environ and not _is_server(os.environ[name]):
            raise StorageError(
                f"the variable {name} of the environment is no address of a server",
                place=address,
                remedy="Write it as https://HOST:PORT, or unset it",
            )
    for name in _SENT:
        if (value := os.environ.get(name)) and not _PLAIN.fullmatch(value):
            raise StorageError(
                f"the variable {name} of the environment holds a blank, a line end or a character "
                "outside ASCII",
                place=address,
                remedy="Set it again, for example without the line end of the file it came from",
            )


def _is_server(endpoint: str) -> bool:
    try:
        parts = urlsplit(endpoint)
        port = parts.port
    except ValueError:
        return False
    return (
        _PLAIN.fullmatch(endpoint) is not None
        and parts.scheme in {"http", "https"}
        and bool(parts.hostname)
        and port != 0
    )
