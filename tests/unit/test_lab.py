"""What a run refuses: names that do not exist, and mixing what was measured under other conditions."""

import json
from pathlib import Path

import pytest

from bitbench.machine.workplace import Workplace, get_default_home
from bitbench.planning.plan import plan_study
from bitbench.quantize.catalog import find_built_in_recipe_file
from bitbench.records.folder import StudyFolder
from bitbench.running.runner import refuse_other_facts, refuse_other_file, refuse_other_study
from bitbench.study.study import Study
from bitbench.study.workload import BUILT_IN_WORKLOADS
from bitbench.util.errors import NotComparableError, StoreError, StudyFileError
from tests.support.quantize_stand_in import write_tensors
from tests.support.synthetic import make_lock, make_plan
from tests.unit.test_models import CONFIG

STUDY = "name: x\nengines:\n  - null\n  - {engine: null, name: other}\nworkloads: [interactive]\n"


def planned(tmp_path: Path, text: str) -> list[str]:
    path = tmp_path / "s.yaml"
    path.write_text(text)
    return [point.name for point in plan_study(path, Workplace(tmp_path / "home")).points]


def test_a_plan_has_a_point_for_every_config_and_workload(tmp_path: Path) -> None:
    assert planned(tmp_path, STUDY) == ["null · interactive", "other · interactive"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            STUDY.replace("- null", "- vlm"),
            r"s\.yaml:3: engines\[0\]: .*vlm.* null, .*transformers, .*vllm",
        ),
        (
            STUDY.replace("- null", "- vlllm"),
            r"unknown engine vlllm; did you mean `vllm`\? installed are",
        ),
        (
            STUDY.replace("- null", "- vllm") + "models: [m]\nrecipes: [w4a16rtn]\n",
            r"'w4a16rtn' is not a recipe; did you mean `w4a16-rtn`\? `bitbench recipes` lists all, or give the path",
        ),
        (
            STUDY + "baseline: nobody\n",
            r"s\.yaml:6: baseline: 'nobody' is not a config.*`null`, `other`",
        ),
        (
            STUDY.replace("- null", "- vllm") + "models: [m]\nrecipes: [w3a3]\n",
            r"s\.yaml:7: recipes\[0\]: 'w3a3' is not a recipe; .*`bitbench recipes` lists all",
        ),
        (STUDY.replace("- null", "- vllm"), r"s\.yaml:2: engines: vllm needs a model"),
        (
            STUDY.replace(
                "[interactive]",
                "\n  - {name: a, input_tokens: 8, output_tokens: 8, duration: 1m,\n"
                "     arrival: {kind: trace, file: none.csv}}",
            ),
            r"s\.yaml:7: workloads\[0\]\.arrival\.file: the trace .*none\.csv cannot be read: No such file",
        ),
        (
            STUDY + "models: [smollm2-135m]\n",
            r"s\.yaml:6: models: no engine of this study runs a model",
        ),
    ],
)
def test_what_cannot_be_planned_is_named_with_its_line(
    tmp_path: Path, text: str, message: str
) -> None:
    with pytest.raises(StudyFileError, match=message):
        planned(tmp_path, text)


def study(**changes: object) -> Study:
    return Study.model_validate(
        {"name": "x", "engines": ["null"], "workloads": ["interactive"], **changes}
    )


def test_a_study_file_of_ones_own_is_not_overwritten(tmp_path: Path) -> None:
    refuse_other_file(StudyFolder(tmp_path), STUDY)
    (tmp_path / "study.yaml").write_text(STUDY)
    refuse_other_file(StudyFolder(tmp_path), STUDY)
    with pytest.raises(
        StoreError, match=r"study\.yaml is another study.*give another folder with --into"
    ):
        refuse_other_file(StudyFolder(tmp_path), STUDY + "seed: 5\n")


def test_only_how_long_to_look_may_change_between_two_runs() -> None:
    refuse_other_study(study(), study(measure={"starts": 9}, baseline="null", description="more"))
    with pytest.raises(StoreError, match="`seed` differs"):
        refuse_other_study(study(), study(seed=5))


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"host": {"cpu_model": "B"}}, "host cpu_model: A then, B now"),
        ({"environments": {"vllm": {"vllm": "2"}}}, "environment vllm has changed"),
        ({"variants": {"m/bf16": "ff"}}, "variant m/bf16 has changed"),
        ({"files": {"azure.csv": "ff"}}, "file azure.csv has changed"),
    ],
)
def test_other_conditions_are_refused_by_name(
    tmp_path: Path, change: dict[str, dict[str, object]], named: str
) -> None:
    then = {
        "host": {"cpu_model": "A"},
        "environments": {"vllm": {"vllm": "1"}},
        "variants": {"m/bf16": "00"},
        "files": {"azure.csv": "00"},
    }
    plan = make_plan(["a"], [BUILT_IN_WORKLOADS["base"]])
    now = {key: {**value, **change.get(key, {})} for key, value in then.items()}
    lock = make_lock(plan, then)
    refuse_other_facts(lock, lock, StudyFolder(tmp_path))
    with pytest.raises(NotComparableError, match=named):
        refuse_other_facts(lock, make_lock(plan, now), StudyFolder(tmp_path))


def test_facts_of_a_later_run_are_added_and_none_is_lost() -> None:
    plan = make_plan(["a"], [BUILT_IN_WORKLOADS["base"]])
    first = make_lock(
        plan, {"created_at": "then", "environments": {"vllm": {"vllm": "1"}}, "files": {"a": "00"}}
    )
    later = make_lock(
        plan, {"bitbench": "2", "environments": {"llamacpp": {"gguf": "1"}}, "files": {"b": "11"}}
    )
    resumed = first.merge_run(later)
    assert resumed.created_at == "then"
    assert resumed.bitbench == "2"
    assert resumed.environments.keys() == {"vllm", "llamacpp"}
    assert resumed.files == {"a": "00", "b": "11"}


def test_a_variant_that_could_not_be_made_before_may_be_there_now(tmp_path: Path) -> None:
    plan = make_plan(["a"], [BUILT_IN_WORKLOADS["base"]])
    for then in ({}, {"m/w8a8": None}):
        lock, found = (
            make_lock(plan, {"variants": then}),
            make_lock(plan, {"variants": {"m/w8a8": "00"}}),
        )
        refuse_other_facts(lock, found, StudyFolder(tmp_path))
        assert lock.merge_run(found).variants == {"m/w8a8": "00"}


def test_a_folder_whose_run_never_began_says_so(tmp_path: Path) -> None:
    (tmp_path / "study.yaml").write_text(STUDY)
    with pytest.raises(StoreError, match="run it again"):
        StudyFolder.existing(tmp_path).read()


def test_the_home_can_be_chosen(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("BITBENCH_HOME", str(tmp_path))
    assert get_default_home() == tmp_path
    monkeypatch.delenv("BITBENCH_HOME")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert get_default_home() == tmp_path / "cache" / "bitbench"


def model_folder(path: Path) -> Path:
    path.mkdir(parents=True)
    (path / "config.json").write_text(json.dumps(CONFIG))
    (path / "tokenizer.json").write_text(json.dumps({"added_tokens": []}))
    write_tensors(path / "model.safetensors", {"a": ("BF16", (32, 8))})
    return path


def with_models(*models: Path | str) -> str:
    listed = ", ".join(map(str, models))
    workload = "{name: w, concurrency: 1, input_tokens: 8, output_tokens: 8}"
    return f"name: x\nmodels: [{listed}]\nengines: [transformers]\nworkloads: [{workload}]\n"


def test_folders_with_the_same_last_name_are_two_variants(tmp_path: Path) -> None:
    models = [model_folder(tmp_path / place) for place in ("a/m", "b/m", "b/other", "c/b/m")]
    assert planned(tmp_path, with_models(*models)) == [
        "a/m/bf16 @ transformers · w",
        f"{tmp_path.name}/b/m/bf16 @ transformers · w",
        "other/bf16 @ transformers · w",
        "c/b/m/bf16 @ transformers · w",
    ]


def test_a_relative_and_an_absolute_folder_are_two_variants(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model_folder(tmp_path / "home" / "m")
    monkeypatch.chdir(tmp_path)
    other = model_folder(tmp_path / "other" / "home" / "m")
    names = planned(tmp_path, with_models("home/m", other))
    assert names == ["home/m/bf16 @ transformers · w", "other/home/m/bf16 @ transformers · w"]


def test_a_model_that_is_given_twice_is_refused(tmp_path: Path) -> None:
    model = model_folder(tmp_path / "a" / "m")
    with pytest.raises(StudyFileError, match="is in this study twice"):
        planned(tmp_path, with_models(model, f"{model}/"))


def test_two_recipes_of_one_name_are_refused(tmp_path: Path) -> None:
    model = model_folder(tmp_path / "m")
    (tmp_path / "mine.yaml").write_text(find_built_in_recipe_file("bf16").read_text())
    with pytest.raises(StudyFileError, match="two recipes are called bf16"):
        planned(tmp_path, with_models(model) + "recipes: [bf16, mine.yaml]\n")
