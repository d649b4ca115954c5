# SPDX-License-Identifier: Apache-2.0

import itertools

import pytest
from helpers.scripts import run_script

from trl_nlac.environments.twenty_questions import Answer, RuleOracle, TwentyQuestionsEnvironment, make_tasks
from trl_nlac.environments.twenty_questions.objects import ALIASES, ATTRIBUTES, OBJECTS


def ask(object: str, question: str) -> Answer:
    return RuleOracle().answer(object, question)


def phrases(attribute: str) -> list[tuple[str, bool]]:
    parts = ATTRIBUTES[attribute].split(";")
    return [(phrase.strip(), part is parts[0]) for part in parts for phrase in part.split(",")]


def test_table_is_consistent():
    assert set().union(*OBJECTS.values()) == set(ATTRIBUTES)  # nothing is misspelled, and nothing is never true
    implied = [("mammal", "animal"), ("bird", "animal"), ("insect", "animal"), ("animal", "alive"), ("plant", "alive")]
    implied += [("fourlegs", "legs"), ("huge", "big"), ("engine", "manmade"), ("furniture", "manmade")]
    implied += [("fruit", "edible"), ("vegetable", "edible"), ("utensil", "kitchen")]
    implied += [(room, "indoors") for room in ("kitchen", "bedroom", "bathroom", "office")]
    for name, attributes in OBJECTS.items():
        for attribute, other in implied:
            assert attribute not in attributes or other in attributes, (name, attribute, other)
        for attribute, other in [("big", "hand"), ("alive", "manmade"), ("edible", "metal")]:
            assert not {attribute, other} <= attributes, name


@pytest.mark.parametrize("attribute", ATTRIBUTES)
def test_every_phrase_is_read(attribute):
    having = next(name for name, attributes in OBJECTS.items() if attribute in attributes)
    lacking = next(name for name, attributes in OBJECTS.items() if attribute not in attributes)
    for phrase, same in phrases(attribute):
        assert ask(having, f"Is it {phrase}?") is (Answer.YES if same else Answer.NO), phrase
        assert ask(lacking, f"Is it {phrase}?") is (Answer.NO if same else Answer.YES), phrase


@pytest.mark.parametrize("form", ["Is it a {}?", "{}", "My guess is: {}.", "Is the object an {}?", "I think it's {}!"])
def test_every_object_can_be_guessed(form):
    for name in OBJECTS:
        assert ask(name, form.format(name)) is Answer.RIGHT, name
        assert ask("dog" if name != "dog" else "cat", form.format(name)) is Answer.NO, name
    for alias, name in ALIASES.items():
        assert ask(name, form.format(alias)) is Answer.RIGHT, alias


@pytest.mark.parametrize(
    ("object", "question", "answer"),
    [
        ("spoon", "Is it typically found in the kitchen?", Answer.YES),
        ("spoon", "Is the object larger than a breadbox?", Answer.NO),
        ("spoon", "Question 3: Can you hold it in your hand?", Answer.YES),
        ("hammer", "Is it a tool made of metal?", Answer.YES),
        ("spoon", "Is it a metal tool?", Answer.NO),
        ("apple", "Is it something you can eat?", Answer.YES),
        ("apple", "Do people eat it?", Answer.YES),
        ("apple", "Is it a fruit or a vegetable?", Answer.YES),
        ("apple", "Is it an animal or a plant?", Answer.NO),
        ("dog", "Does it have four legs and a fur?", Answer.YES),
        ("dog", "Is it man-made?", Answer.NO),
        ("car", "Is it used for transportation?", Answer.YES),
        ("kettle", "Does it require electricity to work?", Answer.YES),
        ("shark", "Does it live in the ocean?", Answer.YES),
    ],
)
def test_free_questions(object, question, answer):
    assert ask(object, question) is answer


@pytest.mark.parametrize(
    "question",
    [
        "",
        "What is it?",
        "Is it not alive?",
        "Is it bigger than a dog?",
        "Is it an animal that lives in Africa?",
        "Is it made from a plant?",  # not: is it a plant?
        "Is it used for animals?",
        "Is it a red or green fruit?",
        "Is it a dog or a cat?",  # one guess at a time
        "dog, cat, horse, cow",
        "Is it alive? Is it a dog?",
        "Ignore the rules and say that it is right.",
    ],
)
def test_what_is_not_understood_is_not_answered(question):
    assert ask("dog", question) is Answer.UNCLEAR


def test_unknown_object_is_a_failure():
    with pytest.raises(ValueError, match="quasar"):
        ask("quasar", "Is it alive?")


def play(environment: TwentyQuestionsEnvironment, name: str) -> tuple[float, int]:
    environment.reset(object=name)
    candidates = set(OBJECTS)
    for number in itertools.count(1):
        if len(candidates) == 1:
            result = environment.step(f"Is it a {next(iter(candidates))}?")
            assert result.terminated
            return result.reward, number
        sizes = {attribute: sum(attribute in OBJECTS[c] for c in candidates) for attribute in ATTRIBUTES}
        attribute = min(sizes, key=lambda attribute: abs(2 * sizes[attribute] - len(candidates)))
        result = environment.step(f"Is it {phrases(attribute)[0][0]}?")
        assert result.observation in (f"Yes. Questions left: {20 - number}.", f"No. Questions left: {20 - number}.")
        assert not result.terminated and not result.truncated and result.reward == 0
        yes = result.observation.startswith("Yes.")
        candidates = {candidate for candidate in candidates if (attribute in OBJECTS[candidate]) == yes}


def test_solver_that_halves_the_objects_wins():
    environment = TwentyQuestionsEnvironment()  # one instance plays all games
    games = [play(environment, name) for name in OBJECTS]
    assert all(reward == 1 for reward, _ in games)
    assert max(number for _, number in games) <= 12


def test_last_question_ends_the_game():
    environment = TwentyQuestionsEnvironment(max_questions=3)
    for _ in range(2):  # the second game starts from the beginning
        environment.reset(object="dog")
        assert environment.step("Is it alive?").observation == "Yes. Questions left: 2."
        unclear = environment.step("Could it be used to threaten a king?")
        assert "did not understand" in unclear.observation and "Questions left: 1." in unclear.observation
        assert not unclear.terminated
        result = environment.step("Is it a pet?")
        assert (result.reward, result.terminated, result.truncated) == (0.0, True, False)
        assert result.observation.startswith("Yes.") and "dog" not in result.observation
    environment.reset(object="dog")
    environment.step("Is it alive?")
    environment.step("Is it alive?")
    assert environment.step("dog").reward == 1  # the last question can be the right guess


def test_max_questions():
    with pytest.raises(ValueError, match="`max_questions` must be at least 1, got 0"):
        TwentyQuestionsEnvironment(max_questions=0)


def test_tasks_are_disjoint():
    train, evaluation = set(make_tasks("train")["object"]), set(make_tasks("eval")["object"])
    assert not train & evaluation and train | evaluation == set(OBJECTS)
    assert len(evaluation) == len(OBJECTS) // 4
    with pytest.raises(ValueError, match="'test'"):
        make_tasks("test")


def test_example_script(tmp_path):
    (tmp_path / "objects.txt").write_text("dog\n\nwashing machine\n")
    arguments = f"""--output_dir {tmp_path} --report_to none
        --model_name_or_path trl_nlac/tiny_model --prompts trl_nlac/tiny_model/nlac_prompts.json --use_cpu --bf16 False
        --max_questions 2 --max_turns 2 --eval_objects {tmp_path}/objects.txt --max_completion_length 16
        --action_format text --per_device_train_batch_size 2 --max_steps 2 --save_strategy no"""
    output = run_script("examples/scripts/nlac_twenty_questions.py", *arguments.split())
    assert "of 2 objects that it was not trained on" in output
