import datetime
import os

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from ctr_pipeline.distributed.rpc.access import Access, is_loopback
from ctr_pipeline.distributed.rpc.certificates import ROLES, SERVING_ROLES, role_name
from ctr_pipeline.errors import CtrPipelineError, RunFolderError


@pytest.fixture(params=[False, True], ids=["open", "tls"])
def tls(request):
    return request.param


class TestSecrets:
    def test_access_is_loaded_as_it_was_created(self, tmp_path, tls):
        created = Access.create(tmp_path / "job", tls)
        assert Access.load(tmp_path / "job", "launcher") == created
        assert (created.tls is not None) == tls

    def test_secrets_are_readable_by_their_owner_only(self, tmp_path):
        previous = os.umask(0)
        try:
            Access.create(tmp_path / "job", True)
        finally:
            os.umask(previous)
        files = [path for path in (tmp_path / "job").rglob("*") if path.is_file()]
        of_roles = {f"{role}.{kind}" for role in ROLES for kind in ("pem", "key")}
        assert {path.name for path in files} == {"token", "ca.pem"} | of_roles
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
        # The key of the authority is nowhere: only those of the roles are.
        access = Access.create(tmp_path, True)
        # The base64 text of a certificate may hold "KEY" by chance.
        files = [path for path in tmp_path.rglob("*") if path.is_file()]
        keys = [path for path in files if b"PRIVATE KEY-----" in path.read_bytes()]
        assert {path.name for path in keys} == {f"{role}.key" for role in ROLES}
        authority = x509.load_pem_x509_certificate(access.tls.authority)
        public = [load_pem_private_key(path.read_bytes(), None).public_key() for path in keys]
        assert authority.public_key() not in public
        assert not any(one in public[:place] for place, one in enumerate(public))

    def test_certificates_do_not_remain_without_tls(self, tmp_path):
        Access.create(tmp_path, True)
        Access.create(tmp_path, False)
        assert not (tmp_path / "tls").exists()


class TestAddresses:
    @pytest.mark.parametrize(
        ("address", "stays"),
        [
            ("127.0.0.1:0", True),
            ("127.8.0.2:7000", True),
            ("localhost:1", True),
            ("[::1]:80", True),
            ("0.0.0.0:0", False),
            ("[::]:0", False),
            ("10.0.0.1:7000", False),
            ("master.example:7000", False),
            ("127.0.0.1.example:7000", False),
            ("localhost.example:1", False),
            ("[::ffff:10.0.0.1]:1", False),
            (":1", False),
            ("", False),
        ],
    )
    def test_address_counts_as_loopback_if_it_stays_on_this_machine(self, address, stays):
        assert is_loopback(address) == stays

    def test_beyond_this_machine_calls_are_encrypted_unless_somebody_insists(self, tmp_path):
        address = "10.0.0.1:7000"
        plain = Access.create(tmp_path, False)
        plain.require_protected("127.0.0.1:0")
        with pytest.raises(CtrPipelineError, match=r"10\.0\.0\.1:7000: is not .*--insecure"):
            plain.require_protected(address)
        Access.create(tmp_path, True).require_protected(address)
        Access.create(tmp_path, False, insecure=True).require_protected(address)
        Access.load(tmp_path, "worker").require_protected(address)


class TestTokens:
    def test_token_of_the_job_alone_is_admitted(self, tmp_path):
        access = Access.create(tmp_path, False)
        assert access.admits(access.token)
        for wrong in ("", access.token[:-1], access.token + "x", access.token.upper(), "é", "\0"):
            assert not access.admits(wrong)


class TestCertificates:
    @pytest.mark.parametrize("role", ROLES)
    def test_each_names_its_role_alone_and_outlives_any_job(self, tmp_path, role):
        Access.create(tmp_path, True)
        access = Access.load(tmp_path, role)
        member = x509.load_pem_x509_certificate(access.tls.certificate)
        names = member.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        of_roles = {role_name(one) for one in ROLES}
        assert set(names.get_values_for_type(x509.DNSName)) & of_roles == {role_name(role)}
        purposes = member.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
        serves = x509.oid.ExtendedKeyUsageOID.SERVER_AUTH in purposes
        assert serves == (role in SERVING_ROLES.values())
        left = member.not_valid_after_utc - datetime.datetime.now(datetime.UTC)
        assert left > datetime.timedelta(days=3650)

    def test_a_role_needs_its_own_files_alone(self, tmp_path):
        Access.create(tmp_path, True)
        for path in (tmp_path / "tls").iterdir():
            if path.name not in {"ca.pem", "worker.pem", "worker.key"}:
                path.unlink()
        assert Access.load(tmp_path, "worker").tls is not None
        with pytest.raises(RunFolderError, match=r"master\.pem: is missing"):
            Access.load(tmp_path, "master")

    def test_one_of_another_role_is_told(self, tmp_path):
        Access.create(tmp_path, True)
        for kind in ("pem", "key"):
            (tmp_path / "tls" / f"worker.{kind}").rename(tmp_path / "tls" / f"master.{kind}")
        with pytest.raises(RunFolderError, match=r"master\.pem is not the certificate of a master"):
            Access.load(tmp_path, "master")

    def test_an_expired_one_is_told(self, tmp_path, monkeypatch):
        monkeypatch.setattr(
            "ctr_pipeline.distributed.rpc.certificates.VALID_FOR", -datetime.timedelta(minutes=1)
        )
        Access.create(tmp_path, True)
        with pytest.raises(RunFolderError, match=r"expired on .*ctrpipe run --resume"):
            Access.load(tmp_path, "worker")
        monkeypatch.undo()
        Access.create(tmp_path, True)
        assert Access.load(tmp_path, "worker").tls is not None


class TestBadFiles:
    def test_no_job(self, tmp_path):
        with pytest.raises(RunFolderError, match="token: is missing"):
            Access.load(tmp_path, "worker")

    @pytest.mark.parametrize("content", [b"", b"\n", b"a\0b", b"\xff\xff", "tökén".encode()])
    def test_a_damaged_token(self, tmp_path, content):
        (tmp_path / "token").write_bytes(content)
        with pytest.raises(RunFolderError, match="holds no token"):
            Access.load(tmp_path, "worker")

    @pytest.mark.parametrize("name", ["ca.pem", "worker.pem", "worker.key"])
    def test_a_missing_certificate_is_no_way_around_tls(self, tmp_path, name):
        Access.create(tmp_path, True)
        (tmp_path / "tls" / name).unlink()
        with pytest.raises(RunFolderError, match=f"{name}: is missing"):
            Access.load(tmp_path, "worker")

    @pytest.mark.parametrize("name", ["ca.pem", "worker.pem", "worker.key"])
    @pytest.mark.parametrize("content", [b"", b"garbage", b"-----BEGIN CERTIFICATE-----\n"])
    def test_a_damaged_certificate(self, tmp_path, name, content):
        Access.create(tmp_path, True)
        (tmp_path / "tls" / name).write_bytes(content)
        with pytest.raises(RunFolderError, match="certificates of the job are damaged"):
            Access.load(tmp_path, "worker")

    def test_certificates_of_different_jobs(self, tmp_path):
        ours = Access.create(tmp_path / "ours", True)
        Access.create(tmp_path / "theirs", True)
        (tmp_path / "theirs" / "tls" / "ca.pem").write_bytes(ours.tls.authority)
        with pytest.raises(RunFolderError, match="damaged"):
            Access.load(tmp_path / "theirs", "worker")
        Access.create(tmp_path / "theirs", True)
        (tmp_path / "theirs" / "tls" / "worker.key").write_bytes(ours.tls.key)
        with pytest.raises(RunFolderError, match=r"worker.key is not the key of worker.pem"):
            Access.load(tmp_path / "theirs", "worker")

    @pytest.mark.parametrize("name", ["token", "tls/ca.pem", "tls/worker.key"])
    def test_an_unreadable_file(self, tmp_path, name):
        # A folder in its place: tests may run as a user whom permissions do not bind.
        Access.create(tmp_path, True)
        (tmp_path / name).unlink()
        (tmp_path / name).mkdir()
        with pytest.raises(RunFolderError, match="cannot be read"):
            Access.load(tmp_path, "worker")

    def test_a_file_where_the_folder_goes(self, tmp_path):
        (tmp_path / "job").write_text("")
        with pytest.raises(RunFolderError, match="job: cannot be written"):
            Access.create(tmp_path / "job", False)
