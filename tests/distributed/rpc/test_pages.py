import http.client
import socket
import threading

import pytest

from ctr_pipeline.distributed.rpc.access import Access
from ctr_pipeline.distributed.rpc.failures import PeerUnavailable
from ctr_pipeline.distributed.rpc.pages import (
    Reply,
    SessionGate,
    TokenGate,
    fetch_page,
    kept_for_a_moment,
    serve_pages,
)
from ctr_pipeline.errors import CtrPipelineError

PAGES = {"/": lambda: Reply(b"<p>hello", "text/html", headers={"Content-Security-Policy": "x"})}
HOST = "127.0.0.1"


def ask(address, path="/", method="GET", **headers):
    connection = http.client.HTTPConnection(address, timeout=60)
    try:
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.read(), answer.headers
    finally:
        connection.close()


@pytest.fixture
def access():
    return Access.within_process()


@pytest.fixture
def address(access):
    with serve_pages(PAGES, TokenGate(access), host=HOST) as found:
        yield found


def test_page_is_seen_by_whoever_shows_the_token(address, access):
    status, body, headers = ask(address, Authorization=f"Bearer {access.token}")
    assert (status, body) == (200, b"<p>hello")
    assert headers["Content-Security-Policy"] == "x"
    assert headers["Cache-Control"] == "no-store"
    assert headers["X-Frame-Options"] == "DENY"
    assert headers["X-Content-Type-Options"] == "nosniff"


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Authorization": ""},
        {"Authorization": "Bearer"},
        {"Authorization": "Bearer wrong"},
        {"Authorization": "Bearer \xff\xfe"},
        {"Authorization": "Basic {token}"},
        {"Cookie": "token={token}"},
    ],
)
def test_page_is_not_seen_without_the_token(address, access, headers):
    given = {name: value.format(token=access.token) for name, value in headers.items()}
    status, body, found = ask(address, **given)
    assert status == 401
    assert b"hello" not in body
    assert found["WWW-Authenticate"] == "Bearer"


def test_a_token_in_the_address_opens_nothing(address, access):
    assert ask(address, f"/?token={access.token}")[0] == 401


def test_strangers_do_not_learn_which_pages_there_are(address):
    assert ask(address, "/nothing")[0] == 401


def test_other_pages_do_not_exist(address, access):
    assert ask(address, "/../token", Authorization=f"Bearer {access.token}")[0] == 404


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"])
def test_pages_are_only_read(address, access, method):
    status, _, headers = ask(address, method=method, Authorization=f"Bearer {access.token}")
    assert status == 405
    assert headers["Allow"] == "GET"


def test_an_unknown_method_is_refused(address, access):
    assert ask(address, method="BREW", Authorization=f"Bearer {access.token}")[0] == 501


def test_a_page_that_cannot_be_made_is_told_without_details(access, caplog):
    def fail():
        raise ValueError("secret inside")

    with serve_pages({"/": fail}, TokenGate(access), host=HOST) as address:
        status, body, _ = ask(address, Authorization=f"Bearer {access.token}")
    assert status == 500
    assert b"secret" not in body
    assert "secret inside" in caplog.text


def test_error_that_a_person_can_mend_is_told(access):
    def fail():
        raise CtrPipelineError("is damaged", place="metrics.json")

    with serve_pages({"/": fail}, TokenGate(access), host=HOST) as address:
        status, body, _ = ask(address, Authorization=f"Bearer {access.token}")
    assert status == 503
    assert b"metrics.json" in body


def test_silent_callers_do_not_keep_others_out(access):
    with serve_pages(PAGES, TokenGate(access), host=HOST) as address:
        host, _, port = address.rpartition(":")
        silent = [socket.create_connection((host, int(port)), timeout=60) for _ in range(8)]
        assert ask(address, Authorization=f"Bearer {access.token}")[0] == 200
        for one in silent:
            one.close()


def test_callers_are_turned_away_when_there_are_too_many(access):
    entered, leave = threading.Semaphore(0), threading.Event()

    def wait():
        entered.release()
        leave.wait(60)
        return Reply(b"")

    with serve_pages({"/": wait}, TokenGate(access), host=HOST) as address:
        headers = {"Authorization": f"Bearer {access.token}"}
        callers = [threading.Thread(target=ask, args=(address,), kwargs=headers) for _ in range(16)]
        for one in callers:
            one.start()
        for _ in callers:
            assert entered.acquire(timeout=60)
        with pytest.raises((http.client.HTTPException, OSError)):
            ask(address, **headers)
        leave.set()
        for one in callers:
            one.join()


def test_a_page_is_made_once_for_all_who_look():
    now, made = [0.0], []
    page = kept_for_a_moment(lambda: made.append(1) or Reply(b""), clock=lambda: now[0])
    page(), page()
    assert len(made) == 1
    now[0] = 1.5
    page()
    assert len(made) == 2


def test_a_host_of_another_machine_is_named(access):
    # 192.0.2.0/24 is kept for documentation: no machine has an address of it.
    with (
        pytest.raises(CtrPipelineError, match="pages cannot be served on") as refused,
        serve_pages(PAGES, TokenGate(access), host="192.0.2.1"),
    ):
        pass
    assert refused.value.place == "192.0.2.1:0"


# A session of a browser.


def open_session(address, gate):
    status, body, headers = ask(address, gate.opening_path)
    assert status == 200
    assert b'url=/"' in body
    cookie = headers["Set-Cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie
    return cookie.partition(";")[0]


def test_the_browser_that_opens_the_address_first_sees_the_pages():
    gate = SessionGate()
    with serve_pages(PAGES, gate, host=HOST) as address:
        assert ask(address)[0] == 401
        path = gate.opening_path
        cookie = open_session(address, gate)
        assert ask(address, Cookie=cookie)[:2] == (200, b"<p>hello")
        # What a history or a log keeps opens nothing.
        assert ask(address, path)[0] == 401
        assert ask(address, "/open/")[0] == 401
        assert gate.opening_path not in cookie


@pytest.mark.parametrize("cookie", ["", "x=y", "{name}=", "{name}=wrong", "\x00", "{name}"])
def test_other_cookies_open_nothing(cookie):
    gate = SessionGate()
    with serve_pages(PAGES, gate, host=HOST) as address:
        name = open_session(address, gate).partition("=")[0]
        cookies = cookie.format(name=name)
        if "\x00" in cookies:
            assert gate.stop("/", {"Cookie": cookies}).status == 401
        else:
            assert ask(address, Cookie=cookies)[0] == 401


def test_the_address_opened_again_in_its_own_browser_leads_to_the_page():
    gate = SessionGate()
    with serve_pages(PAGES, gate, host=HOST) as address:
        path = gate.opening_path
        cookie = open_session(address, gate)
        status, body, _ = ask(address, path, Cookie=cookie)
        assert status == 200
        assert b'url=/"' in body


# Between members.


def connect_to(address):
    host, _, port = address.rpartition(":")
    return lambda: socket.create_connection((host, int(port)), timeout=60)


def test_pages_are_fetched_with_the_token(address, access):
    found = fetch_page(access, "/", connect=connect_to(address))
    assert (found.status, found.body, found.kind) == (200, b"<p>hello", "text/html")
    assert found.headers == {"Content-Security-Policy": "x"}
    other = Access.within_process()
    assert fetch_page(other, "/", connect=connect_to(address)).status == 401


def test_pages_answer_only_members_of_the_job_by_tls(tmp_path):
    launcher = Access.create(tmp_path / "job", tls=True)
    master = Access.load(tmp_path / "job", "master")
    client = Access.load(tmp_path / "job", "client")
    Access.create(tmp_path / "other", tls=True)
    stranger = Access.load(tmp_path / "other", "client")
    with serve_pages(PAGES, TokenGate(master), host=HOST, tls=master.tls) as address:
        assert fetch_page(client, "/", connect=connect_to(address)).body == b"<p>hello"
        forged = Access(launcher.token, stranger.tls)
        with pytest.raises(PeerUnavailable):
            fetch_page(forged, "/", connect=connect_to(address))
        with pytest.raises(PeerUnavailable):
            fetch_page(Access(launcher.token, None), "/", connect=connect_to(address))


def test_page_fetch_says_that_nobody_is_there():
    with serve_pages(PAGES, SessionGate(), host=HOST) as address:
        pass
    with pytest.raises(PeerUnavailable, match="cannot be reached"):
        fetch_page(Access.within_process(), "/", connect=connect_to(address))
