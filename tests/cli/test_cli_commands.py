"""The commands beside ``price``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from cli_logs import SECRET, claude_session, run_document, write_runs, written

import costmodel_jax as cm
from costmodel_jax.cli.explain import choose
from costmodel_jax.cli.reading import count_tokens
from costmodel_jax.cli.wording import calls_band, describe_rule, folded, short_ids
from costmodel_jax.schema import json_schema

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return write_runs(
        tmp_path / "runs.jsonl", run_document("alpha-1", 8, measured=True), run_document("alpha-2", 4),
        run_document("beta", 8),
    )  # fmt: skip


class TestExplain:
    def test_every_call_is_shown_with_its_cause(self, log: Path, capsys: Capture) -> None:
        answer = written(capsys, "explain", log, "--run", "be", "--policy", "keep-latest:1", "--cache", "paper")
        assert answer.code == 0
        text = " ".join(answer.out.split())
        assert "Run beta under keep-latest:1 and paper (prompt+generation, block 1)" in text
        assert "reasoning hidden at call 0 reasoning" in text
        assert "processed positions" in text and "! This policy shows fewer prompt tokens" in text
        assert max(map(len, answer.out.splitlines())) <= 80

    def test_json_holds_the_rows_of_the_library(self, log: Path, capsys: Capture) -> None:
        policy = "compact:500,keep_tail=60,summary=20"
        answer = written(capsys, "explain", log, "--run", "beta", "--policy", policy, "--arch", "Qwen3-8B", "--json")
        document = answer.json
        run = next(run for run in cm.load_runs(log) if run.id == "beta")
        compact = cm.Compact(500, keep_tail=60, summary=20, instruction=500)
        expected = cm.explain(run, compact, cm.cache_rules["paper-16"], cm.architectures["Qwen3-8B"].prices())
        assert document["calls"] == json.loads(json.dumps(expected.to_rows()))
        assert document["inferred_rule"] is None
        assert any(call["summary"] for call in document["calls"])
        shown = written(capsys, "explain", log, "--run", "beta", "--policy", policy).out
        assert "Calls marked s are summary requests" in shown

    def test_measured_hits_stand_beside_predicted_ones(self, log: Path, capsys: Capture) -> None:
        answer = written(capsys, "explain", log, "--run", "alpha-1")
        assert "server: R it measured" in answer.out and "Measured by the server:" in answer.out
        document = written(capsys, "explain", log, "--run", "alpha-1", "--json").json
        assert document["inferred_rule"]["unit"] == 16
        rows = [line.split() for line in answer.out.splitlines() if line.strip()[:1].isdigit()]
        assert len(rows) >= 8
        for row, call in zip(rows, cm.load_runs(log)[0].calls, strict=False):
            usage: Any = call.usage
            assert int(row[3].replace(",", "")) == usage.cached_tokens

    @pytest.mark.parametrize(
        ("wanted", "said"),
        [
            (None, "choose one with --run: alpha-1, alpha-2, beta"),
            ("alpha", "several runs begin so; there are alpha-1, alpha-2"),
            ("gamma", "no such run; there are alpha-1, alpha-2, beta"),
        ],
    )
    def test_one_run_must_be_chosen(self, wanted: str | None, said: str, log: Path, capsys: Capture) -> None:
        answer = written(capsys, "explain", log, *(("--run", wanted) if wanted else ()))
        assert answer.code == 2 and said in answer.err

    def test_an_exact_id_wins_over_one_that_begins_so(self) -> None:
        runs = [cm.Run.from_dict(run_document(name, 1)) for name in ("a", "ab", "abc")]
        assert choose(runs, "ab") is runs[1]
        assert choose(runs[:1], None) is runs[0]
        many = [cm.Run.from_dict(run_document(f"r{i}", 1)) for i in range(30)]
        with pytest.raises(cm.InputError, match=r"r9, \.\.\. 30 in all"):
            choose(many, None)


class TestBreakeven:
    GOLDEN = ("--prefix", "10", "--replaced", "100", "--by", "20", "--tail", "30", "--instruction", "5")
    PRICES = ("--linear", "10", "--pair", "1")

    def test_the_edit_of_the_specification(self, capsys: Capture) -> None:
        document = written(capsys, "breakeven", *self.GOLDEN, *self.PRICES, "--json").json
        assert {way["way"]: (way["k_gen"], way["break_even"]) for way in document["edit"]} == {
            "summary, aligned": (4075.0, 79.375),
            "summary, not aligned": (15345.0, 220.25),
            "no request": (0.0, 28.4375),
        }
        assert {way["rebuild"] for way in document["edit"]} == {2275.0}
        assert document["prices"] == {"name": "given prices", "linear": 10.0, "pair": 1.0}
        assert document["exchange_rate"] == 10.0

    def test_at_a_number_of_remaining_positions_the_sign_decides(self, capsys: Capture) -> None:
        line = ("breakeven", *self.GOLDEN, *self.PRICES, "--k-gen", "1k", "--per-call", "10", "20", "40")
        (way,) = written(capsys, *line, "--remaining", "41", "--json").json["edit"]
        assert way["break_even"] == (1000 + 2275) / 80
        assert way["delta"] == 1000 + 2275 - 80 * 41 < 0
        assert way["calls"] == pytest.approx([way["break_even"] / n for n in (40, 20, 10)])
        text = written(capsys, *line, "--remaining", "41").out
        assert "3 (2-5)" in text and "at L" in text

    def test_a_replacement_that_is_not_shorter_never_pays(self, capsys: Capture) -> None:
        answer = written(capsys, "breakeven", "--replaced", "20", "--by", "20", "--per-call", "5")
        assert answer.code == 0 and "never" in answer.out
        document = written(capsys, "breakeven", "--replaced", "20", "--by", "20", "--json").json
        assert [way["break_even"] for way in document["edit"]] == [None] * 3

    def test_keeping_a_block_of_reasoning(self, capsys: Capture) -> None:
        line = ("breakeven", "--prefix", "20k", "--reasoning", "2k", "--answer", "7")
        document = written(capsys, *line, "--remaining", "400", "--json").json["keep"]
        assert document["retention_horizon"] == pytest.approx(503.5, abs=0.05)
        assert document["delta"]["generation"] < 0 < document["delta"]["prompt"]
        assert "L* = 503.5" in written(capsys, *line).out

    def test_from_a_log_edit_by_edit(self, log: Path, capsys: Capture) -> None:
        line = ("breakeven", log, "--policy", "compact:700,keep_tail=60,summary=20")
        document = written(capsys, *line, "--json").json
        assert {edit["run"] for edit in document["edits"]} == {"alpha-1", "beta"}
        text = written(capsys, *line).out
        assert "When edits of compact:700,keep_tail=60,summary=20 pay back under paper-16" in " ".join(text.split())
        assert "Never fired" in " ".join(written(capsys, "breakeven", log, "--policy", "compact").out.split())
        assert "No run records an edit" in written(capsys, "breakeven", log).out


class TestImport:
    def test_runs_on_stdout_are_read_back(self, tmp_path: Path, capsys: Capture) -> None:
        log = claude_session(tmp_path / "session.jsonl")
        answer = written(capsys, "import", log)
        assert answer.code == 0 and "1 run, 3 calls (claude_code 1)" in answer.err
        copy = tmp_path / "copy.jsonl"
        copy.write_text(answer.out)
        assert cm.load_runs(copy) == cm.load_runs(log)
        assert written(capsys, "import", log, "--quiet").err == ""

    def test_a_file_appears_whole_and_is_accounted_for(self, tmp_path: Path, capsys: Capture) -> None:
        log, out = claude_session(tmp_path / "session.jsonl"), tmp_path / "runs.jsonl"
        answer = written(capsys, "import", log, "--out", out, "--json")
        assert answer.json["loaded"]["runs"] == 1 and answer.json["out"] == str(out)
        assert cm.load_runs(out) == cm.load_runs(log)
        assert f"wrote {out}" in written(capsys, "import", log, "--out", out).out
        assert written(capsys, "import", log, "--out", tmp_path / "no" / "runs.jsonl").code == 2


class TestValidate:
    def test_valid_logs(self, log: Path, capsys: Capture) -> None:
        answer = written(capsys, "validate", log)
        assert answer.code == 0 and answer.out == "valid: 1 file, 3 runs, 20 calls\n"

    def test_every_problem_has_its_line(self, tmp_path: Path, capsys: Capture) -> None:
        wrong_usage = run_document("usage", 2, measured=True)
        wrong_usage["calls"][1]["usage"]["cached_tokens"] = 10**6
        differs = run_document("differs", 3, measured=True)
        differs["calls"][2]["usage"]["prompt_tokens"] += 5
        differs["calls"][1]["usage"]["output_tokens"] += 1
        lines = [
            json.dumps(run_document("good")), json.dumps(wrong_usage), "", "{broken", json.dumps(differs),
            json.dumps({"id": "kinds", "calls": [{"input": [{"kind": "assistent", "tokens": 1}]}]}),
        ]  # fmt: skip
        log = tmp_path / "runs.jsonl"
        log.write_text("\n".join(lines))
        answer = written(capsys, "validate", log)
        assert answer.code == 2
        said = answer.out.splitlines()
        for line, part in (
            (2, "calls[1].usage.cached_tokens = 1000000 exceeds prompt_tokens"),
            (4, "not valid JSON"),
            (5, "calls[1].usage.output_tokens = 62, but its segments add up to 61"),
            (5, "calls[2].usage.prompt_tokens = 568, but its segments add up to 563"),
            (6, "unknown kind"),
        ):
            assert any(message.startswith(f"{log}:{line}: ") and part in message for message in said), part
        assert said[-1] == "5 problems: 1 file, 2 runs, 9 calls"
        document = written(capsys, "validate", log, "--json")
        assert document.code == 2 and document.json["valid"] is False
        assert {problem["line"] for problem in document.json["problems"]} == {2, 4, 5, 6}

    def test_one_file_that_cannot_be_read_hides_no_other(self, tmp_path: Path, capsys: Capture) -> None:
        claude_session(tmp_path / "good.jsonl")
        with claude_session(tmp_path / "bad.jsonl").open("a") as stream:
            stream.write("{broken\n")
        (tmp_path / "readme.txt").write_text("no log")
        (tmp_path / "empty.jsonl").write_text("")
        write_runs(tmp_path / "runs.jsonl", run_document("r"), {"id": "x"})
        answer = written(capsys, "validate", tmp_path)
        assert answer.code == 2
        assert "bad.jsonl:7: not valid JSON" in answer.out and "runs.jsonl:2: " in answer.out
        assert answer.out.splitlines()[-1].startswith("2 problems: 3 files")
        assert "note:" in answer.err and "readme.txt" in answer.err and "empty.jsonl" in answer.err

    def test_a_file_of_no_format_is_a_problem_where_it_was_named(self, tmp_path: Path, capsys: Capture) -> None:
        (tmp_path / "readme.txt").write_text("no log")
        answer = written(capsys, "validate", tmp_path / "readme.txt")
        assert answer.code == 2 and "readme.txt: not a log of a known format" in answer.out

    def test_edits_are_part_of_what_adds_up(self, tmp_path: Path, capsys: Capture) -> None:
        document = run_document("r", 4, measured=True)
        document["calls"][3]["edits"] = [
            {"start": 2, "stop": 4, "segment": {"kind": "summary", "tokens": 20}, "cause": "compaction"}
        ]
        hidden = 50 + 11 - 20
        document["calls"][3]["usage"]["prompt_tokens"] -= hidden
        document["calls"][3]["usage"]["cached_tokens"] = 0
        log = write_runs(tmp_path / "runs.jsonl", document)
        assert written(capsys, "validate", log).code == 0
        document["calls"][3]["edits"][0]["segment"]["tokens"] = 21
        assert written(capsys, "validate", write_runs(log, document)).code == 2

    def test_the_schema(self, capsys: Capture) -> None:
        answer = written(capsys, "validate", "--schema")
        assert answer.code == 0 and answer.json == json.loads(json.dumps(json_schema()))

    def test_real_logs_replay_to_what_was_measured(self, shared: Path, capsys: Capture) -> None:
        for folder in ("claude_code", "codex", "openhands", "inspect_ai/read-sample.eval", "atif"):
            answer = written(capsys, "validate", shared / "logs" / folder, "--quiet")
            assert answer.code == 0, answer.out


class TestArch:
    def test_the_presets(self, capsys: Capture) -> None:
        answer = written(capsys, "arch")
        assert answer.code == 0
        for name in cm.architectures:
            assert name in answer.out
        facts = {one["name"]: one for one in written(capsys, "arch", "--json").json["architectures"]}
        assert facts["Qwen3.6-27B"]["linear"] == 48_701_112_320
        assert facts["Qwen3.6-27B"]["exchange_rate"] == pytest.approx(123_853.3, abs=0.05)

    def test_the_derivation_of_one(self, capsys: Capture) -> None:
        answer = written(capsys, "arch", "qwen3.6-27b")
        for part in ("Qwen3.6-27B", "gated deltanet", "24,350,556,160", "48,701,112,320", "393,216", "123,853.3"):
            assert part in answer.out
        assert max(map(len, answer.out.splitlines())) <= 80
        (facts,) = written(capsys, "arch", "gpt-oss-20b", "--json").json["architectures"]
        assert sum(layer["linear_weights"] for layer in facts["layers"]) == facts["linear_weights"]
        assert facts["extensions"]["windows"][0]["window"] == 128


class TestPlot:
    @pytest.fixture
    def figures(self, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
        """Stand-ins for the figures that note what they were given."""
        from costmodel_jax import figures

        given: dict[str, Any] = {}

        def draw(name: str) -> Any:
            def built(runs: Any, policies: Any, caches: Any, architectures: Any, w: Any) -> Any:
                given[name] = (len(runs), list(policies), list(caches), list(architectures), w)
                if name == "reuse":
                    raise cm.CostModelError("no run has measured hits")
                return name, [{"x": 1}]

            return built

        monkeypatch.setattr(figures, "FIGURES", {name: draw(name) for name in ("cost", "reuse", "crossover")})

        def save(figure: Any, rows: Any, path: Path) -> tuple[Path, Path]:
            path.parent.mkdir(exist_ok=True)
            path.write_text(figure)
            return path, path.with_suffix(".csv")

        monkeypatch.setattr(figures, "save", save)
        return given

    def test_all_that_can_be_drawn_is(
        self, figures: dict[str, Any], log: Path, tmp_path: Path, capsys: Capture
    ) -> None:
        out = tmp_path / "figures"
        answer = written(capsys, "plot", log, "--out", out, "--type", "svg", "--policy", "drop", "--w", "2")
        assert answer.code == 0
        assert answer.out.split() == [
            str(out / name) for name in ("cost.svg", "cost.csv", "crossover.svg", "crossover.csv")
        ]
        assert "reuse left out: no run has measured hits" in answer.err
        assert figures["cost"] == (3, ["drop"], ["paper-16", "prompt:block=16", "none", "vllm"], ["Qwen3.6-27B"], 2.0)

    def test_one_asked_for_must_be_drawn(
        self, figures: dict[str, Any], log: Path, tmp_path: Path, capsys: Capture
    ) -> None:
        answer = written(capsys, "plot", log, "--out", tmp_path, "--figure", "reuse")
        assert answer.code == 2 and "no run has measured hits" in answer.err

    def test_a_figure_about_models_needs_no_log(self, figures: dict[str, Any], tmp_path: Path, capsys: Capture) -> None:
        answer = written(capsys, "plot", "--out", tmp_path / "f", "--figure", "crossover", "--json")
        assert answer.code == 0 and figures["crossover"][0] == 0
        assert answer.json["files"] == [str(tmp_path / "f" / "crossover.png"), str(tmp_path / "f" / "crossover.csv")]

    def test_a_real_figure_and_its_numbers(self, tmp_path: Path, capsys: Capture) -> None:
        assert written(capsys, "plot", "--out", tmp_path, "--figure", "crossover").code == 0
        assert (tmp_path / "crossover.png").read_bytes()[:4] == b"\x89PNG"
        assert "Qwen3.6-27B" in (tmp_path / "crossover.csv").read_text()


class TestTokenizer:
    @pytest.fixture
    def tokenizer(self, tmp_path: Path) -> Path:
        """One token a word."""
        from tokenizers import Tokenizer, models, pre_tokenizers

        made = Tokenizer(models.WordLevel({"[UNK]": 0}, unk_token="[UNK]"))
        made.pre_tokenizer = pre_tokenizers.Whitespace()
        folder = tmp_path / "tokenizer"
        folder.mkdir()
        made.save(str(folder / "tokenizer.json"))
        return folder

    def test_by_folder_file_and_name(self, tokenizer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        assert count_tokens(str(tokenizer))("three words here") == 3
        assert count_tokens(str(tokenizer / "tokenizer.json"))("") == 0
        snapshot = tmp_path / "hub" / "models--some--model" / "snapshots" / "abc"
        snapshot.mkdir(parents=True)
        (snapshot / "tokenizer.json").write_bytes((tokenizer / "tokenizer.json").read_bytes())
        monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
        assert count_tokens("some/model")("two words") == 2

    def test_what_is_no_tokenizer_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "tokenizer.json").write_text("{}")
        with pytest.raises(cm.InputError, match=r"tokenizer\.json: is no tokenizer"):
            count_tokens(str(tmp_path))

    def test_a_log_without_usage_is_counted_and_said_to_be_modelled(
        self, tokenizer: Path, tmp_path: Path, capsys: Capture
    ) -> None:
        messages = [
            {"role": "system", "content": f"{SECRET} be brief"}, {"role": "user", "content": "one two three"},
            {"role": "assistant", "content": "four five"}, {"role": "user", "content": "six"},
            {"role": "assistant", "content": "seven"},
        ]  # fmt: skip
        log = tmp_path / "run.traj.json"
        log.write_text(json.dumps({"info": {"mini_version": "1"}, "messages": messages}))
        line = ("price", log, "--format", "mini_swe_agent", "--policy", "keep-all", "--cache", "paper")
        refused = written(capsys, *line)
        assert refused.code == 2 and "--tokenizer" in refused.err
        answer = written(capsys, *line, "--tokenizer", tokenizer, "--json")
        assert answer.code == 0 and SECRET not in answer.out
        (row,) = answer.json["rows"]
        assert (row["lengths"], row["label"], row["calls"]) == ("modelled", "modelled", 2)
        assert written(capsys, "validate", log, "--format", "mini_swe_agent", "--tokenizer", tokenizer).code == 0


class TestWording:
    def test_long_ids_are_cut_where_they_stay_apart(self) -> None:
        ids = ["short", "a" * 20 + "1" * 20, "a" * 20 + "2" * 20, "b" * 30, "b" * 30 + "#2"]
        shown = short_ids([cm.Run.from_dict(run_document(name, 1)) for name in ids])
        assert list(shown.values()) == ["short", "a" * 20 + "1…", "a" * 20 + "2…", "b" * 30, "b" * 30 + "#2"]

    def test_specs_break_behind_commas(self) -> None:
        assert folded("compact") == "compact"
        spec = "compact-with-memory:30000,keep_tail=5000,slots=16,aligned=false"
        assert folded(spec) == "compact-with-memory:30000,\n keep_tail=5000,\n slots=16,aligned=false"

    def test_bands(self) -> None:
        assert calls_band((1.2, 3.0, 9.9)) == "3 (2-10)"
        assert calls_band((2.5, 2.5, 2.5)) == "3"
        assert calls_band((float("inf"),) * 3) == "never"

    @pytest.mark.parametrize(
        ("name", "words"),
        [
            ("none", "no reuse"),
            ("vllm", "prompt+generation, block 16, full hit minus token, last token skipped"),
            ("vllm-window", "window, block 16, full hit minus token, window 128, last token skipped"),
            ("anthropic", "prompt, block 1, from 1024 tokens, for 300 s"),
        ],
    )
    def test_rules(self, name: str, words: str) -> None:
        assert describe_rule(cm.cache_rules[name]) == words
