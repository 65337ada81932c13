import pytest

from ctr_pipeline.distributed.launchers.exits import classify_exit, count_oom_kills


class TestClassifyExit:
    @pytest.mark.parametrize(
        ("exit_code", "stopped", "oom_kills", "reason"),
        [
            (0, False, 0, "completed"),
            (0, True, 0, "completed"),
            (0, False, 3, "completed"),
            (1, False, 0, "error"),
            (1, True, 0, "error"),
            (3, False, 1, "error"),
            (71, False, 0, "out_of_memory"),
            (73, False, 0, "not_started"),
            (74, False, 0, "killed"),
            (-9, False, 0, "killed"),
            (-9, False, 1, "out_of_memory"),
            # We did it, whatever else the system killed meanwhile.
            (-9, True, 1, "killed"),
            (-15, True, 0, "killed"),
            (-15, False, 1, "killed"),
            (143, True, 0, "killed"),
            (143, False, 0, "killed"),
            (130, False, 0, "killed"),
            (-2, False, 0, "killed"),
            (-1, False, 0, "killed"),
            (-11, False, 0, "error"),
            (-11, True, 0, "error"),
            (-6, False, 1, "error"),
            (139, False, 0, "error"),
            (255, False, 0, "error"),
        ],
    )
    def test_every_way_to_end(self, exit_code, stopped, oom_kills, reason):
        assert classify_exit(exit_code, stopped=stopped, oom_kills=oom_kills) == reason


class TestCountOomKills:
    def lay(self, tmp_path, cgroup, **files):
        (tmp_path / "proc" / "self").mkdir(parents=True)
        (tmp_path / "proc" / "self" / "cgroup").write_text(cgroup)
        for name, text in files.items():
            path = tmp_path / name.replace("__", "/").replace("_DOT_", ".")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return count_oom_kills(tmp_path / "proc", tmp_path / "cg")

    def test_version_2(self, tmp_path):
        events = "low 0\noom 7\noom_kill 3\noom_group_kill 0\n"
        found = self.lay(tmp_path, "0::/job/a\n", cg__job__a__memory_DOT_events=events)
        assert found == 3

    def test_version_1(self, tmp_path):
        control = "oom_kill_disable 0\nunder_oom 0\noom_kill 5\n"
        found = self.lay(
            tmp_path,
            "9:name=systemd:/\n4:cpu,memory:/job\n0::/\n",
            cg__memory__job__memory_DOT_oom_control=control,
            proc__vmstat="oom_kill 99\n",
        )
        assert found == 5

    def test_the_whole_machine_where_the_group_says_nothing(self, tmp_path):
        vmstat = "nr_free_pages 1\noom_kill 12\n"
        assert self.lay(tmp_path, "0::/\n", proc__vmstat=vmstat) == 12

    def test_oom_kill_count_is_zero_when_nothing_can_be_read(self, tmp_path):
        assert count_oom_kills(tmp_path, tmp_path) == 0

    def test_oom_kill_count_of_this_machine_is_a_number(self):
        assert count_oom_kills() >= 0
