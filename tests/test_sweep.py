"""Sweeps: equal to counting one by one, on any mesh, by any number of processes, and after any interruption."""

from __future__ import annotations

import hashlib
import json
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import jax
import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from strategies import seeded_runs

import costmodel_jax as cm
from costmodel_jax.cli import main
from costmodel_jax.counting import STATUS
from costmodel_jax.errors import CostModelError, InputError
from costmodel_jax.groups import compiling_quickly
from costmodel_jax.schema import Run, dump_runs
from costmodel_jax.sweep import Axes, Sweep, sweep
from costmodel_jax.sweeps.folder import sweep_to_folder
from costmodel_jax.sweeps.records import open_records
from costmodel_jax.sweeps.shapes import grouped, shape_of
from costmodel_jax.sweeps.summary import summarise, summarise_folder
from costmodel_jax.tables import RUN_COLUMNS

ROOT = Path(__file__).resolve().parents[1]
POLICIES = {
    "drop": cm.DropImmediately(),
    "keep-all": cm.KeepAll(),
    "keep-latest:2": cm.KeepLatest(2),
    "compact": cm.Compact(90, keep_tail=10, summary=7, instruction=3),
    "with-memory": cm.CompactWithMemory(90, keep_tail=10, summary=7, instruction=3, slots=4, memory_flops=2.5),
    "tight": cm.Compact(90, keep_head=60, keep_tail=40, summary=7),
    "as-recorded": cm.AsRecorded(),
}
CACHES = {
    "checkpoint": cm.CacheRule(reuse="checkpoint", block=4),
    "paper": cm.CacheRule(),
    "window": cm.CacheRule(reuse="window", block=4, window=17, full_hit="minus_token", last_token="skipped"),
    "none": cm.CacheRule(reuse="none"),
    "ttl": cm.CacheRule(reuse="prompt", ttl=60.0),
}
PRICES = {
    "plain": cm.Prices(linear=1000.0, pair=1.0),
    "windowed": cm.Prices(
        linear=777.7, pair=0.3, windows=(cm.Capped(window=9, pair=1.1), cm.Capped(window=30, pair=0.7)), state=3.1
    ),
    "absorbed": cm.Prices(linear=10.1, pair=2.0, pair_generated=3.3, head=5.0),
}
W = (1.0, 2.5)


def ragged_runs() -> list[Run]:
    """Short and long ones, with edits and sessions, some with token ids, one without times."""
    runs = [*seeded_runs(3, 9, ids=False), *seeded_runs(4, 4, max_calls=5), *seeded_runs(5, 3, ids=False, max_calls=20)]
    bare = runs[0].to_dict()
    for call in bare["calls"]:
        call.pop("time", None)
    return [*runs, Run.from_dict(bare | {"id": "no times"})]


@pytest.fixture(autouse=True, scope="module")
def _quick() -> Any:
    with compiling_quickly([]):
        yield


@pytest.fixture(scope="module")
def runs() -> list[Run]:
    return ragged_runs()


@pytest.fixture(scope="module")
def swept(runs: list[Run]) -> Sweep:
    return sweep(runs, POLICIES, CACHES, PRICES, W)


def counted(runs: list[Run], policy: Any, rule: cm.CacheRule) -> dict[str, tuple[cm.Counts, int]]:
    """Counts and the row of each run, packed with all others that can be packed with it."""
    found: dict[str, tuple[cm.Counts, int]] = {}
    for ids in (False, True):
        part = [run for run in runs if shape_of(run).ids == ids]
        if rule.ttl is not None:
            part = [run for run in part if run.id != "no times"]
        counts = cm.count(cm.pack(part), policy, rule)
        found |= {run.id: (counts, row) for row, run in enumerate(part)}
    return found


def test_equals_counting_by_itself(runs: list[Run], swept: Sweep) -> None:
    table = {(r["run"], r["policy"], r["cache"], r["architecture"], r["w"]): r for r in swept.to_arrow().to_pylist()}
    assert len(table) == len(swept) == len(runs) * len(POLICIES) * len(CACHES) * len(PRICES) * len(W)
    statuses = set()
    for policy_name, policy in POLICIES.items():
        for cache_name, rule in CACHES.items():
            found = counted(runs, policy, rule)
            costs = {
                (name, w, id(counts)): cm.cost(counts, prices, w)
                for counts in {id(counts): counts for counts, _ in found.values()}.values()
                for name, prices in PRICES.items()
                for w in W
            }
            for run in runs:
                for name in PRICES:
                    for w in W:
                        row = table[run.id, policy_name, cache_name, name, w]
                        statuses.add(row["status"])
                        if run.id not in found:
                            assert row["status"] == "no times" and row["flops"] is None and row["pairs"] is None
                            continue
                        counts, i = found[run.id]
                        if not counts.ok[i]:
                            assert row["status"] == STATUS[int(counts.status[i])]
                            assert row["flops"] is None and row["calls"] is None
                            continue
                        assert row["status"] == "ok"
                        for number in ("prompt", "reused", "generated", "processed", "pairs"):
                            assert row[number] == int(getattr(counts, number)[i].sum()), number
                        assert row["calls"] == int(counts.mask[i].sum())
                        assert row["requests"] == int(counts.summary[i].sum())
                        assert row["flops"] == float(costs[name, w, id(counts)][i])
    assert {"ok", "no times", "infeasible"} <= statuses


def test_columns(runs: list[Run], swept: Sweep) -> None:
    frame = swept.to_pandas()
    assert list(frame.columns) == list(RUN_COLUMNS)
    keys = frame.groupby(["run", "policy", "cache", "architecture", "w"], observed=True).size()
    assert len(keys) == len(frame) and keys.max() == 1
    whole = frame[frame.status == "ok"]
    assert (whole.processed == whole.prompt - whole.reused + whole.generated).all()
    kept = whole[whole.policy == "keep-all"]
    assert (kept.vs_keep_all == 1.0).all()
    key = ["run", "cache", "architecture", "w"]
    base = kept.set_index(key).flops.rename("base")
    joined = whole.join(base, on=key)
    assert np.array_equal(joined.flops / joined.base, joined.vs_keep_all, equal_nan=True)
    assert set(whole[whole.requests > 0].label) == {"modelled"}
    assert set(whole[(whole.requests == 0) & (whole.lengths != "modelled")].label) == {"replayed"}
    assert set(frame.run) == {run.id for run in runs}


def test_keep_all_is_compared_with_where_it_was_not_asked_for(runs: list[Run], swept: Sweep) -> None:
    alone = sweep(runs, [cm.DropImmediately()], CACHES, PRICES, W)
    assert alone.policies == ("drop",)
    np.testing.assert_array_equal(alone.flops()[:, 0], swept.flops()[:, 0])
    assert alone.to_arrow()["vs_keep_all"].drop_null().to_pylist()


def test_a_mesh_shares_the_runs(runs: list[Run], swept: Sweep) -> None:
    mesh = jax.make_mesh((2, 4), ("a", "b"))
    assert sweep(runs, POLICIES, CACHES, PRICES, W, mesh=mesh).to_arrow().equals(swept.to_arrow())


def test_specs_and_names() -> None:
    runs = seeded_runs(1, 2, ids=False)
    found = sweep(runs, ["drop", "keep-latest:3"], "vllm:block=32", ["Qwen3-8B"], w=3)
    assert found.policies == ("drop", "keep-latest:3") and found.caches == ("vllm:block=32",)
    assert list(found.prices) == ["Qwen3-8B"] and found.w == (3.0,)
    with pytest.raises(CostModelError, match="policies: two are called 'drop'"):
        sweep(runs, [cm.DropImmediately(), "drop"])
    with pytest.raises(CostModelError, match="has no name; give a mapping"):
        sweep(runs, architectures=[cm.Prices(linear=1.0, pair=1.0)])
    with pytest.raises(CostModelError, match=r"caches: KeepAll\(\) is a KeepAll"):
        sweep(runs, caches=[cm.KeepAll()])
    with pytest.raises(CostModelError, match=r"w = \(0.5,\)"):
        sweep(runs, w=0.5)
    with pytest.raises(CostModelError, match="at least one run"):
        sweep([])
    with pytest.raises(CostModelError, match="policies is empty"):
        sweep(runs, policies=[])


def test_few_shapes(runs: list[Run]) -> None:
    groups = list(grouped(runs))
    assert sorted(index for group in groups for index in group.runs) == list(range(len(runs)))
    for group in groups:
        assert {shape_of(runs[i]) for i in group.runs} == {group.shape}
        assert len(group.runs) <= group.rows
        pack = cm.pack([runs[i] for i in group.runs], calls=group.shape.calls, segments=group.shape.slots)
        assert (pack.ids is not None) == group.shape.ids
    assert all(group.rows % 8 == 0 for group in grouped(runs, multiple=8))
    assert len({group.shape for group in groups}) <= 4


# --- folders


AXES = Axes.of(
    {name: POLICIES[name] for name in ("drop", "compact")}, {"paper": CACHES["paper"]}, {"plain": PRICES["plain"]}, W
)


@pytest.fixture
def lines(tmp_path: Path) -> Path:
    path = tmp_path / "runs.jsonl"
    dump_runs([run for run in ragged_runs() if not shape_of(run).ids], path)
    return path


def content(folder: Path) -> dict[str, str]:
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in sorted(folder.iterdir())}


def test_a_folder_holds_the_same_rows(lines: Path, tmp_path: Path) -> None:
    records = open_records(lines)
    progress = sweep_to_folder(records, tmp_path / "out", AXES, chunk=4)
    assert (progress.parts, progress.done, progress.kept) == (4, 4, 0)
    runs = [run for i in range(len(records)) for run in records[i]]
    whole = pa.concat_tables([pq.read_table(file) for file in sorted((tmp_path / "out").glob("part-*.parquet"))])
    want = sweep(runs, AXES.policies, AXES.caches, AXES.prices, AXES.w).to_arrow()
    assert whole.to_pylist() == want.to_pylist()
    assert summarise_folder(tmp_path / "out") == summarise([want])


def test_a_sweep_that_was_stopped_goes_on(lines: Path, tmp_path: Path) -> None:
    records, seen = open_records(lines), []

    class StoppedError(Exception):
        pass

    def stop(progress: Any) -> None:
        seen.append(progress.done)
        if progress.done == 2:
            raise StoppedError

    sweep_to_folder(records, tmp_path / "whole", AXES, chunk=4)
    with pytest.raises(StoppedError):
        sweep_to_folder(records, tmp_path / "out", AXES, chunk=4, on_part=stop)
    assert len(list((tmp_path / "out").glob("part-*"))) == 2
    (tmp_path / "out" / "part-000002.parquet.partial").write_bytes(b"half")  # what a kill in a write leaves
    progress = sweep_to_folder(records, tmp_path / "out", AXES, chunk=4)
    assert (progress.kept, progress.done) == (2, 4) and seen == [1, 2]
    assert content(tmp_path / "out") == content(tmp_path / "whole")
    again = sweep_to_folder(records, tmp_path / "out", AXES, chunk=4)
    assert (again.kept, again.runs) == (4, 0)


def test_processes_share_the_parts(lines: Path, tmp_path: Path) -> None:
    records = open_records(lines)
    sweep_to_folder(records, tmp_path / "one", AXES, chunk=3)
    for index in (1, 0, 2):
        sweep_to_folder(records, tmp_path / "three", AXES, chunk=3, process=(index, 3))
    assert content(tmp_path / "three") == content(tmp_path / "one")


COMMAND = ["--policy", "drop", "--policy", "compact:90", "--cache", "paper", "--arch", "Qwen3-8B", "--chunk", "1"]


@pytest.mark.slow
def test_a_kill_and_two_processes_change_no_byte(lines: Path, tmp_path: Path) -> None:
    def start(*command: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, *command, *COMMAND], cwd=ROOT, stderr=subprocess.DEVNULL)

    shell = ("-c", "import sys; from costmodel_jax.cli import main; sys.exit(main(sys.argv[1:]))", "sweep", str(lines))
    assert start(*shell, "--out", str(tmp_path / "whole")).wait(300) == 0
    parts = len(list((tmp_path / "whole").glob("part-*.parquet")))
    killed = start(*shell, "--out", str(tmp_path / "killed"))
    deadline = time.monotonic() + 300
    while not list((tmp_path / "killed").glob("part-*.parquet")) and time.monotonic() < deadline:
        time.sleep(0.01)
    killed.kill()
    killed.wait()
    assert 0 < len(list((tmp_path / "killed").glob("part-*.parquet"))) < parts
    assert start(*shell, "--out", str(tmp_path / "killed")).wait(300) == 0
    with socket.socket() as found:
        found.bind(("localhost", 0))
        port = found.getsockname()[1]
    cluster = ["--cluster.coordinator", f"localhost:{port}", "--cluster.processes", "2", "--cluster.process"]
    both = [
        start("-m", "launch.sweep", str(lines), "--out", str(tmp_path / "two"), *cluster, str(index))
        for index in (0, 1)
    ]
    assert [process.wait(300) for process in both] == [0, 0]
    assert content(tmp_path / "killed") == content(tmp_path / "two") == content(tmp_path / "whole")


def test_folders_of_others_are_refused(lines: Path, tmp_path: Path) -> None:
    records = open_records(lines)
    sweep_to_folder(records, tmp_path / "out", AXES, chunk=8)
    other = Axes.of(AXES.policies, AXES.caches, AXES.prices, 3.0)
    with pytest.raises(InputError, match=r"sweep\.json: is of another sweep: w differ"):
        sweep_to_folder(records, tmp_path / "out", other, chunk=8)
    with pytest.raises(InputError, match="chunk, parts differ"):
        sweep_to_folder(records, tmp_path / "out", AXES, chunk=4)
    with pytest.raises(InputError, match=r"holds files, but no sweep\.json"):
        sweep_to_folder(records, tmp_path, AXES)


def test_every_kind_of_file(tmp_path: Path) -> None:
    from array_record.python.array_record_module import ArrayRecordWriter

    runs = seeded_runs(8, 5, ids=False)
    documents = [run.to_dict() for run in runs]
    texts = [msgspec.json.encode(document) for document in documents]
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "a.jsonl").write_bytes(b"\n".join([*texts[:2], b"", *texts[2:]]))  # an empty line, none at the end
    pq.write_table(pa.table({"run": [text.decode() for text in texts]}), folder / "b.parquet", row_group_size=2)
    bare = [{"id": f"row-{i}", "calls": [{"input": [{"kind": "user", "tokens": i}]}]} for i in range(3)]
    pq.write_table(pa.Table.from_pylist(bare), folder / "c.parquet")
    writer = ArrayRecordWriter(str(folder / "d.array_record"), "group_size:1")
    for text in texts:
        writer.write(text)
    writer.close()
    (folder / "e.json").write_bytes(texts[0])
    (folder / "f.txt").write_text("not a log")
    records = open_records(folder)
    found = [run for i in range(len(records)) for run in records[i]]
    ids = [run.id for run in runs]
    assert sorted(run.id for run in found) == sorted([*ids, *ids, *ids, ids[0], "row-0", "row-1", "row-2"])
    assert {run.id: run for run in found if run.id in ids} == {run.id: run for run in runs}
    assert [entry["bytes"] for entry in records.describe()] == [Path(path).stat().st_size for path in records.paths]


def test_bad_records_are_named(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    good = msgspec.json.encode(seeded_runs(8, 1, ids=False)[0].to_dict())
    path.write_bytes(good + b'\n{"id": "x", "calls": []}\n{"id": 3\n')
    records = open_records(path)
    assert len(records) == 3 and len(records[0]) == 1
    with pytest.raises(InputError, match=r"runs\.jsonl:2: calls: a run needs at least one call"):
        records[1]
    with pytest.raises(InputError, match=r"runs\.jsonl:3: is not JSON"):
        records[2]
    options = cm.importers.Options(lenient=True)
    lenient = open_records(path, options=options)
    progress = sweep_to_folder(lenient, tmp_path / "out", AXES, chunk=1)
    assert progress.done == 3 and progress.runs == 1
    assert [problem.kind for problem in options.problems] == ["skipped_run"] * 2
    with pytest.raises(InputError, match="no such file"):
        open_records(tmp_path / "absent")
    with pytest.raises(InputError, match="standard input"):
        open_records("-")
    pq.write_table(pa.table({"x": [1]}), tmp_path / "other.parquet")
    with pytest.raises(InputError, match="neither a column 'run'"):
        open_records(tmp_path / "other.parquet")


def test_the_command(lines: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    given = ["sweep", str(lines), "--out", str(out), "--chunk", "4", "--policy", "drop", "--cache", "paper"]
    given += ["--arch", "Qwen3-8B", "--w", "1", "--w", "3"]
    assert main([*given, "--share", "1/2"]) == 0
    assert "2 of 4 parts" in capsys.readouterr().out
    assert main([*given, "--json"]) == 0
    captured = capsys.readouterr()
    answer = json.loads(captured.out)
    assert answer["complete"] and answer["parts"] == 4 and answer["made"] == 2 and len(answer["totals"]) == 2
    assert "parts" in captured.err and "shapes compiled" in captured.err
    assert main(given) == 0
    shown = capsys.readouterr().out
    assert "Qwen3-8B, w = 3" in shown and max(map(len, shown.splitlines())) <= 200
    assert main([*given, "--share", "2/2"]) == 2
    assert "--share 2/2" in capsys.readouterr().err
