import datetime
import os

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from ctr_pipeline.distributed.rpc.access import JOB_HOST_NAME, Access
from ctr_pipeline.errors import RunFolderError


@pytest.fixture(params=[False, True], ids=["open", "tls"])
def tls(request):
    return request.param


class TestSecrets:
    def test_what_is_created_is_loaded(self, tmp_path, tls):
        created = Access.create(tmp_path / "job", tls)
        assert Access.load(tmp_path / "job") == created
        assert (created.tls is not None) == tls

    def test_only_the_owner_can_read_them(self, tmp_path):
        previous = os.umask(0)
        try:
            Access.create(tmp_path / "job", True)
        finally:
            os.umask(previous)
        files = [path for path in (tmp_path / "job").rglob("*") if path.is_file()]
        assert {path.name for path in files} == {"token", "ca.pem", "member.pem", "member.key"}
        assert {path.stat().st_mode & 0o777 for path in files} == {0o600}
        assert (tmp_path / "job" / "tls").stat().st_mode & 0o777 == 0o700

    def test_each_start_makes_others(self, tmp_path, tls):
        first = Access.create(tmp_path, tls)
        second = Access.create(tmp_path, tls)
        assert not second.admits(first.token)
        assert first.tls != second.tls or not tls

    def test_repr_hides_them(self, tmp_path):
        access = Access.create(tmp_path, True)
        assert access.token not in repr(access)
        assert "PRIVATE KEY" not in repr(access)

    def test_no_member_can_sign_another(self, tmp_path):
        # The key of the authority is nowhere: only the member's own key is.
        access = Access.create(tmp_path, True)
        keys = [
            path for path in tmp_path.rglob("*") if path.is_file() and b"KEY" in path.read_bytes()
        ]
        assert [path.name for path in keys] == ["member.key"]
        authority = x509.load_pem_x509_certificate(access.tls.authority)
        assert load_pem_private_key(access.tls.key, None).public_key() != authority.public_key()

    def test_without_tls_no_certificates_remain(self, tmp_path):
        Access.create(tmp_path, True)
        Access.create(tmp_path, False)
        assert not (tmp_path / "tls").exists()


class TestTokens:
    def test_only_the_job_s_own_is_admitted(self, tmp_path):
        access = Access.create(tmp_path, False)
        assert access.admits(access.token)
        for wrong in ("", access.token[:-1], access.token + "x", access.token.upper(), "é", "\0"):
            assert not access.admits(wrong)


class TestCertificates:
    def test_they_name_the_job_and_this_machine_for_a_month(self, tmp_path):
        access = Access.create(tmp_path, True)
        member = x509.load_pem_x509_certificate(access.tls.certificate)
        names = member.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        assert {JOB_HOST_NAME, "localhost"} <= set(names.get_values_for_type(x509.DNSName))
        assert "127.0.0.1" in map(str, names.get_values_for_type(x509.IPAddress))
        left = member.not_valid_after_utc - datetime.datetime.now(datetime.UTC)
        assert datetime.timedelta(days=29) < left <= datetime.timedelta(days=30)

    def test_an_expired_one_is_told(self, tmp_path, monkeypatch):
        monkeypatch.setattr(
            "ctr_pipeline.distributed.rpc.access._VALID_FOR", -datetime.timedelta(minutes=1)
        )
        Access.create(tmp_path, True)
        with pytest.raises(RunFolderError, match=r"expired on .*ctrpipe run --resume"):
            Access.load(tmp_path)


class TestBadFiles:
    def test_no_job(self, tmp_path):
        with pytest.raises(RunFolderError, match="token: is missing"):
            Access.load(tmp_path)

    @pytest.mark.parametrize("content", [b"", b"\n", b"a\0b", b"\xff\xff", "tökén".encode()])
    def test_a_damaged_token(self, tmp_path, content):
        (tmp_path / "token").write_bytes(content)
        with pytest.raises(RunFolderError, match="holds no token"):
            Access.load(tmp_path)

    @pytest.mark.parametrize("name", ["ca.pem", "member.pem", "member.key"])
    def test_a_missing_certificate_is_no_way_around_tls(self, tmp_path, name):
        Access.create(tmp_path, True)
        (tmp_path / "tls" / name).unlink()
        with pytest.raises(RunFolderError, match=f"{name}: is missing"):
            Access.load(tmp_path)

    @pytest.mark.parametrize("name", ["ca.pem", "member.pem", "member.key"])
    @pytest.mark.parametrize("content", [b"", b"garbage", b"-----BEGIN CERTIFICATE-----\n"])
    def test_a_damaged_certificate(self, tmp_path, name, content):
        Access.create(tmp_path, True)
        (tmp_path / "tls" / name).write_bytes(content)
        with pytest.raises(RunFolderError, match="certificates of the job are damaged"):
            Access.load(tmp_path)

    def test_certificates_of_different_jobs(self, tmp_path):
        ours = Access.create(tmp_path / "ours", True)
        Access.create(tmp_path / "theirs", True)
        (tmp_path / "theirs" / "tls" / "ca.pem").write_bytes(ours.tls.authority)
        with pytest.raises(RunFolderError, match="damaged"):
            Access.load(tmp_path / "theirs")
        Access.create(tmp_path / "theirs", True)
        (tmp_path / "theirs" / "tls" / "member.key").write_bytes(ours.tls.key)
        with pytest.raises(RunFolderError, match=r"member.key is not the key of member.pem"):
            Access.load(tmp_path / "theirs")

    @pytest.mark.parametrize("name", ["token", "tls/ca.pem", "tls/member.key"])
    def test_an_unreadable_file(self, tmp_path, name):
        # A folder in its place: tests may run as a user whom permissions do not bind.
        Access.create(tmp_path, True)
        (tmp_path / name).unlink()
        (tmp_path / name).mkdir()
        with pytest.raises(RunFolderError, match="cannot be read"):
            Access.load(tmp_path)

    def test_a_file_where_the_folder_goes(self, tmp_path):
        (tmp_path / "job").write_text("")
        with pytest.raises(RunFolderError, match="job: cannot be written"):
            Access.create(tmp_path / "job", False)
