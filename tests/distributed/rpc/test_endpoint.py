import pytest

from ctr_pipeline.distributed.rpc.endpoint import Endpoint, load_endpoint, save_endpoint

FOUND = Endpoint("127.0.0.1:4000", "127.0.0.1:4001", "here", 17)


def test_the_last_announced_master_is_found(tmp_path):
    assert load_endpoint(tmp_path) is None
    save_endpoint(tmp_path, Endpoint("127.0.0.1:1", "", "there", 1))
    save_endpoint(tmp_path, FOUND)
    assert load_endpoint(tmp_path) == FOUND
    assert [path.name for path in tmp_path.iterdir()] == ["endpoint.json"]


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", '{"address": 1, "pid": "x"}'])
def test_a_damaged_file_names_no_master(tmp_path, content):
    (tmp_path / "endpoint.json").write_text(content)
    assert load_endpoint(tmp_path) is None
