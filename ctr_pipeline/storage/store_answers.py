"""What the answers of an object store mean, read from the texts of the client's errors.

Addresses of requests, which may hold a signature, are left out.
"""

import re
from dataclasses import dataclass

from ctr_pipeline.errors import CtrPipelineError, StorageError
from ctr_pipeline.storage.cloud_environment import credentials_of, is_web, region, remedy_of
from ctr_pipeline.storage.protocol import (
    ObjectMissingError,
    ObjectTruncatedError,
    StorageAwayError,
    StorageDeniedError,
)

_MESSAGE_CHARACTERS = 300
_STATUS = re.compile(r"status code: (\d{3})([^:\n]*)")
_CODE = re.compile(r"<Code>\s*([^<]+?)\s*</Code>")
_MESSAGE = re.compile(r"<Message>\s*([^<]+?)\s*</Message>")
_REGION = re.compile(r"<Region>\s*([\w-]+)\s*</Region>|expecting '([\w-]+)'")
_REQUEST = re.compile(r"Error performing [A-Z]+ https?://([^/?\s]*)\S* in \S+( ?, after [^-]*)? - ")
_SYSTEM = re.compile(r'message: "([^"]+)"')
_BUCKET_MISSING = re.compile(
    r"NoSuchBucket|ContainerNotFound|The specified (bucket|container) does not exist", re.I
)
_EXPIRED = {"ExpiredToken", "ExpiredTokenException", "InvalidToken", "TokenRefreshRequired"}
_CREDENTIAL_REQUESTS = re.compile(
    r"performing token request|/latest/(api/token|meta-data)|/computeMetadata/|/metadata/identity"
)
"""Asked of a cloud for the credentials of its machine."""

_REPEATED_STATUS = {408, 425, 429}


@dataclass(frozen=True)
class Answer:
    """An error of the client.

    Attributes:
        host: The host that was asked, with its port; empty where the text names none.
        status: The HTTP status; None where there was no answer.
        code: As S3, GCS and Azure name it; empty where the answer has no body.
        said: In words.
        is_missing: The client takes it for an object that is not there.
        text: The whole error.
    """

    host: str
    status: int | None
    code: str
    said: str
    is_missing: bool
    text: str

    @classmethod
    def of(cls, error: BaseException) -> "Answer":
        """Reads an error of the client."""
        text = str(error).strip() or type(error.__cause__ or error).__name__
        shown = text.partition("\n\nDebug source:")[0]
        status = _STATUS.search(shown)
        code = _CODE.search(shown)
        request = _REQUEST.search(shown)
        return cls(
            host=request[1] if request else "",
            status=int(status[1]) if status else None,
            code=code[1] if code else "",
            said=_said(text, shown),
            is_missing=isinstance(error, FileNotFoundError),
            text=text,
        )

    @property
    def names_no_bucket(self) -> bool:
        """Whether the bucket itself is not there."""
        return _BUCKET_MISSING.search(self.text) is not None

    @property
    def is_about_credentials(self) -> bool:
        """Whether not the store was asked but who gives this machine credentials."""
        return _CREDENTIAL_REQUESTS.search(self.text) is not None


def explain(answer: Answer, *, address: str, key: str) -> CtrPipelineError | None:
    """The error that an answer is; None where it says nothing of the next attempt.

    Args:
        address: The root of the storage.
        key: What was asked for.
    """
    place = f"{address}/{key}"
    if answer.is_about_credentials:
        return None if answer.status is None else no_credentials(address, answer)
    if answer.names_no_bucket:
        return StorageError(
            "the bucket is not there", place=address, remedy="Create it, or name another"
        )
    if answer.is_missing:
        return ObjectMissingError("is not there", place=place)
    return (
        _explain_region(answer, address)
        or _explain_refusal(answer, address, place)
        or _explain_other(answer, place)
    )


def _explain_region(answer: Answer, address: str) -> CtrPipelineError | None:
    found = _REGION.search(answer.text)
    is_redirect = answer.status in {301, 307} or "redirect without LOCATION" in answer.text
    if not (is_redirect or found or answer.code == "IllegalLocationConstraintException"):
        return None
    there = (found[1] or found[2]) if found else ""
    return StorageError(
        f"the bucket is not in the region {region()}" + (f" but in {there}" if there else ""),
        place=address,
        remedy=f"Set AWS_REGION={there}"
        if there
        else "Set AWS_REGION to the region of the bucket, and check AWS_ENDPOINT_URL",
    )


def _explain_refusal(answer: Answer, address: str, place: str) -> CtrPipelineError | None:
    if "RequestTimeTooSkewed" in answer.text:
        return StorageDeniedError(
            "the store refuses requests that are signed at another time than its own",
            place=place,
            remedy="Set the clock of this machine",
        )
    if answer.code in _EXPIRED:
        return StorageDeniedError(
            f"the store refuses credentials that are no longer valid ({answer.said})",
            place=place,
            remedy="Renew the credentials in the environment",
        )
    if answer.status in {401, 403}:
        return StorageDeniedError(
            f"the store refuses it ({answer.said})",
            place=place,
            remedy=remedy_of(address)
            if is_web(address)
            else f"Check the credentials in the environment, {credentials_of(address)}, and what "
            "they allow",
        )
    return None


def _explain_other(answer: Answer, place: str) -> CtrPipelineError | None:
    if answer.status == 416:
        return truncated(place)
    if "Range request not supported" in answer.text or "Content-Length Header" in answer.text:
        return StorageError(
            "is served as a whole, without its size, and not in ranges",
            place=place,
            remedy="Download it and name the file",
        )
    if "builder error" in answer.text:
        return StorageError(
            "the endpoint has no TLS, which must be allowed",
            place=place,
            remedy="Set AWS_ALLOW_HTTP=true, or use an endpoint with TLS",
        )
    if "InvalidCertificate" in answer.text:
        return StorageError(
            f"the certificate of {answer.host} is not trusted here",
            place=place,
            remedy="Use an endpoint with a certificate that this machine trusts",
        )
    if "InvalidMessage" in answer.text:
        return StorageError(
            f"{answer.host} does not speak TLS",
            place=place,
            remedy="Write the endpoint as http://… and set AWS_ALLOW_HTTP=true",
        )
    is_final = (
        answer.status is not None
        and 300 <= answer.status < 500
        and answer.status not in _REPEATED_STATUS
    )
    if is_final:
        return StorageError(
            f"the store does not do it ({answer.said})",
            place=place,
            remedy="Check the address, the region and the endpoint",
        )
    return None


def no_credentials(address: str, answer: Answer) -> StorageDeniedError:
    """The error where neither the environment nor the cloud has credentials."""
    return StorageDeniedError(
        "there are no credentials in the environment, and this machine has no identity of its own "
        f"({answer.said})",
        place=address,
        remedy=remedy_of(address),
    )


def away(answer: Answer, *, place: str) -> StorageAwayError:
    """The error of a store that gives no answer that counts."""
    who = f"{answer.host}: " if answer.host and answer.status is None else ""
    return StorageAwayError(
        f"the store does not answer ({who}{answer.said})",
        place=place,
        remedy="Check the network and the endpoint",
    )


def truncated(place: str, num_bytes: int | None = None) -> ObjectTruncatedError:
    """The error of an object that ends before the bytes that were asked for.

    Args:
        place: The object.
        num_bytes: Bytes that are missing; None: it is not known how many.
    """
    how = "" if num_bytes is None else f"{num_bytes:,} bytes "
    return ObjectTruncatedError(f"ends {how}too early", place=place)


def _said(text: str, shown: str) -> str:
    """The answer in a line, without the request."""
    code, message = _CODE.search(shown), _MESSAGE.search(shown)
    if code is not None:
        said = f"{code[1]}: {message[1]}" if message else code[1]
    elif (status := _STATUS.search(shown)) is not None:
        said = f"status {status[1]}{status[2]}".rstrip()
    elif "dns error" in text:
        said = "its name cannot be resolved"
    elif (system := _SYSTEM.search(text)) is not None:
        said = system[1]
    else:
        said = _REQUEST.sub("", shown.splitlines()[0])
    return " ".join(said.split())[:_MESSAGE_CHARACTERS].rstrip(". ")
