# SPDX-License-Identifier: Apache-2.0

"""The prompts of every role, as data, and the parsers of critiques."""

import json
import re
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import yaml
from transformers.utils import cached_file

from .types import Critique, Message
from .written_files import replaced


PROMPTS_FILE = "nlac_prompts.json"  # next to a saved model

POLICY = """\
You act in an environment, one action per turn, until the task is done. Every observation asks for your next action, \
in exactly this form:
{action_format}
A message can also ask you to judge an action, or to foresee what follows from it. Such a message names its own form: \
answer in that form and take no action."""

FORMAT_REACT = """\
Thought: <one line on what you know, what is missing and why the action helps>
Action: <the action, as the task asks for it>"""

FORMAT_TEXT = """\
<the action and nothing else>"""

FORMAT_TOOL_CALL = """\
{call}
or, without a call, in plain text: a message or, when the task is done, your final answer"""

UNREADABLE_ACTION = """\
What you wrote could not be read as an action, so nothing happened. Write your action in exactly this form:
{action_format}"""

HISTORY_CUT = """\
(Earlier turns of this conversation are left out here.)"""

TOOLS = """\
An action can call one of these tools. Write the call as {"name": <tool>, "arguments": <JSON object>}. An action in \
plain text, without a call, is a message or, when the task is done, your final answer.
{tools}"""

# Worked examples come before the task, as the conversation that they would be: a small model copies the words of an
# example that stands alone, and what it does with a situation where it sees both.

EXAMPLE = """\
An example, from another task:"""

AFTER_EXAMPLES = """\
The examples end here. This is your task:"""

# The critic, for one future and its judgement in one answer (k = 1)

CRITIQUE = """\
Take no action now and call no tool. Judge the action you just took: foresee one way in which things may go on from \
it, until the task has succeeded or failed, then say whether it was the best action. Write these two lines, and \
nothing else:
Future: <what happens next and how it ends, in a few short sentences>
Optimality: <"Yes", or "No" and one sentence on what to do instead, argued from that future>"""

# The critic, for several futures (k > 1): the successor model, and the evaluator that reads all futures

FUTURE = """\
Take no action now. Foresee one way in which things may go on from the action you just took, until the task has \
succeeded or failed. Write a few short sentences and call no tool."""

EVALUATION = """\
Take no action now and call no tool. Judge the action you just took. These are ways in which things may go on from it:
{futures}

Weigh them against each other. Write these two lines, and nothing else:
Future: <what is most likely to happen, and what else may, in a few short sentences>
Optimality: <"Yes", or "No" and one sentence on what to do instead, argued from these futures>"""

# The critic of a task of one step

CORRECTNESS = """\
Judge the solution you just gave. Write this line, and nothing else:
Correctness: <"Yes", or "No" and where the first error is; a solution not written as the task asks is an error too>"""

# The language Bellman backup

SUCCESSOR = """\
Your action led to this observation:
{next_observation}

Take no action now. Foresee one way in which things may go on from here, until the task has succeeded or failed. \
Write a few short sentences and call no tool."""

STEP_REWARD = "The reward of this step is {reward}."

BACKUP = """\
Now judge the action that led to this observation; call no tool. Begin with the observation, and go on with what you \
foresaw after it, up to success or failure, in one or two short sentences. Write these two lines, and nothing else:
Future: {observed} ...
Optimality: <only "Yes" if it was the best action, else "No" and one sentence on what to do instead>"""

_ENDED = """\
Your action led to this observation, and the task ended with it:
{next_observation}

The final score is {score}; a score of {success_threshold} or more is a success. The task has {outcome}."""

BACKUP_TERMINATED = f"""\
{_ENDED}

Now judge the action; call no tool. Write these two lines, and nothing else:
Future: {{observed}} The task has {{outcome}}.
Optimality: <only "Yes" if it was the best action, else "No" and one sentence on what to do instead>"""

BACKUP_FUTURE = """\
Now tell what follows from the action that led to this observation: the observation, then what you foresaw after it, \
up to success or failure. What comes first matters most. Write a few short sentences, call no tool, do not judge."""

BACKUP_FUTURE_TERMINATED = f"""\
{_ENDED}

Now tell what followed from the action: the observation, and how the task ended. Write a few short sentences, do not \
judge, and call no tool."""

BACKUP_CORRECTNESS = """\
The final score of your solution is {score}; a score of {success_threshold} or more is right. It has {outcome}.

Judge the solution. Write this line, and nothing else:
Correctness: <only "Yes" if it is right, else "No" and where the first error is; not written as the task asks is an \
error too>"""

# The refinement policy

REFINE = """\
Take your last action back and act anew in its place. Do what its judgement says to do instead, or repeat the action \
if it was the best one: {advice}
Write only the action, in exactly this form:
{action_format}"""

# Reasoning models: the chain of thought of a training target must not know what the prompt in training does not show

_CORRECTED_FORM = """\
Write the new thoughts in one block, and nothing else:
<corrected_think>
<the new thoughts>
</corrected_think>
Use no other tags inside the block."""

CORRECT_BACKUP = f"""\
You thought before that judgement. Your thoughts may have taken for granted what came after the action: the \
observation, the future or the final score. None of it is known when the action is judged. Rewrite your thoughts, as \
close to the old ones in style and length as you can, so that they infer all of this from what was known up to the \
action: not "this happened", but "I expect this to happen, because". They must still lead to the same judgement.
{_CORRECTED_FORM}"""

CORRECT_REFINE = f"""\
You thought before that new action. Your thoughts may have leaned on the action that it replaces, or on the judgement \
of it. Rewrite them, as close to the old ones in style and length as you can, as if the new action were the first and \
only one you considered: start from the newest observation, and where the judgement taught you something, infer it, \
"if I did that, I would expect this". They must still lead to the same new action.
{_CORRECTED_FORM}"""

OBSERVED_END = "The task ended with that, with a final score of {score}."

# Worked examples of the roles; models that seldom keep to a form need them.
WORKED_EXAMPLES: list[dict[str, str]] = [
    {
        "task": "You are locked in a house. Get out within three moves. A move is written in words.",
        "thought": "A key may lie in the drawer.",
        "action": "open the drawer",
        "critique": "Future: The drawer is empty, a move is lost, and the door stays shut.\n"
        "Optimality: No. Search the shelf, because keys are kept beside the door.",
        "refine_thought": "Keys are kept beside the door.",
        "refine": "search the shelf",
        "next_observation": "You find a small key.",
        "successor": "I open the door with the key and leave the house. The task succeeds.",
        "backup": "Future: You find a small key. I open the door with the key and leave the house. The task "
        "succeeds.\nOptimality: Yes",
    },
    {
        "task": "A visitor asks for a book about stars. Name the room of the library: art, history or science.",
        "thought": "Stars are old.",
        "action": "history",
        "next_observation": "The visitor finds nothing about stars there, and leaves.",
        "score": "0",
        "success_threshold": "1",
        "outcome": "failed",
        "backup_terminated": "Future: The visitor finds nothing about stars there, and leaves. The task has failed.\n"
        "Optimality: No. Name science, because stars are a part of it.",
        "refine_thought": "Stars are a part of science.",
        "refine": "science",
        "critique": "Future: The visitor finds a book about stars there, and the task succeeds.\nOptimality: Yes",
    },
]
# The same where a task is a single step.
WORKED_SOLUTIONS: list[dict[str, str]] = [
    {
        "task": "What is 7 * 8 + 1? Write the result alone on the last line.",
        "thought": "I multiply first.",
        "action": "7 * 8 = 54\n55",
        "score": "0",
        "success_threshold": "1",
        "outcome": "failed",
        "backup_correctness": "Correctness: No. In the first step, 7 * 8 is 56 and not 54.",
        "refine_thought": "7 * 8 is 56.",
        "refine": "7 * 8 = 56\n57",
        "correctness": "Correctness: Yes",
    },
    {
        "task": "Write the plural of the word mouse.",
        "thought": "Most words take an s.",
        "action": "mouses",
        "correctness": "Correctness: No. The word is irregular: mouse, mice.",
        "refine_thought": "It is irregular.",
        "refine": "mice",
        "score": "1",
        "success_threshold": "1",
        "outcome": "succeeded",
        "backup_correctness": "Correctness: Yes",
    },
]

_FIELD = re.compile(
    r"\{(action_format|advice|call|futures|next_observation|observed|outcome|reward|score|success_threshold|tools)\}"
)
_REQUIRED_FIELDS = {
    "tools": {"tools"},
    "evaluation": {"futures"},
    "successor": {"next_observation"},
    "backup_terminated": {"next_observation", "score"},
    "backup_future_terminated": {"next_observation", "score"},
    "backup_correctness": {"score"},
}
_OPTIONAL_FIELDS = {
    **dict.fromkeys(("policy", "unreadable_action"), {"action_format"}),
    "format_tool_call": {"call"},
    "refine": {"action_format", "advice"},
    **dict.fromkeys(("backup", "backup_future"), {"observed"}),
    **dict.fromkeys(("backup_terminated", "backup_future_terminated"), {"success_threshold", "outcome", "observed"}),
    "backup_correctness": {"success_threshold", "outcome"},
    "observed_end": {"score", "success_threshold", "outcome"},
    "step_reward": {"reward"},
}


# What a worked example has besides answers: the first action, and values of fields.
_OF_EXAMPLES = ("task", "thought", "action", "refine_thought", "next_observation", "futures", "reward")
_OF_EXAMPLES += ("score", "success_threshold", "outcome")
# Prompts whose answers it can have, in any order.
_ANSWERED = ("critique", "future", "evaluation", "correctness", "refine", "successor", "backup", "backup_terminated")
_ANSWERED += ("backup_future", "backup_future_terminated", "backup_correctness")
_NUM_REPEATED = 8  # words in a row, which an answer seldom shares with its question by chance


def render(template: str, **values: str) -> str:
    """Fill in the fields of a template. Other braces, and braces in the values, stay as they are."""
    return _FIELD.sub(lambda match: values[match.group(1)], template)


def _runs_of_words(text: str) -> set[tuple[str, ...]]:
    words = re.findall(r"\w+", text.lower())
    return {tuple(words[i : i + _NUM_REPEATED]) for i in range(len(words) - _NUM_REPEATED + 1)}


def numbered(futures: list[str]) -> str:
    """Number futures for the evaluator, one per line (k > 1)."""
    return "\n".join(f"{number}. {future}" for number, future in enumerate(futures, 1))


@dataclass(frozen=True)
class NLACPrompts:
    """
    Every prompt of the method, in this project's own words (paper, section 5.1 and appendix A). Replace any of them
    to fit a task; `{field}` marks where the trainer fills in a value.

    Args:
        policy (`str`, *optional*):
            System message of the policy, p_react. `{action_format}` is optional. Empty for none.
        tools (`str`, *optional*):
            Follows the system message where the environment has tools. Shows their JSON schemas, `{tools}`.
        format_react (`str`, *optional*):
            Describes an action with `action_format="react"`.
        format_text (`str`, *optional*):
            Describes an action with `action_format="text"`.
        format_tool_call (`str`, *optional*):
            Describes an action with `action_format="tool_call"`; the chat template shows the tools. `{call}`, the form
            in which the chat template writes a call, is optional.
        unreadable_action (`str`, *optional*):
            Observation after an answer that is not an action. `{action_format}` is optional.
        history_cut (`str`, *optional*):
            Added to the end of the task where later turns were cut to keep to `max_prompt_length`.
        critique (`str`, *optional*):
            Asks for future and verdict of the last action, p_pred and p_eval in one (k = 1).
        future (`str`, *optional*):
            Asks for a future of the last action, p_pred (k > 1).
        evaluation (`str`, *optional*):
            Shows `{futures}` and asks for the verdict, p_eval (k > 1).
        correctness (`str`, *optional*):
            Asks for the verdict alone, where a task is a single step.
        successor (`str`, *optional*):
            Shows `{next_observation}` and asks for the future from there: the first half of the Bellman backup.
        backup (`str`, *optional*):
            Asks for the judgement that joins the observation and the predicted future, p_tpred. `{observed}`, the
            observation on one line, cut to 64 tokens, is optional here and below.
        backup_terminated (`str`, *optional*):
            The same where the task ended: shows `{next_observation}` and the final `{score}`; `{success_threshold}`
            and `{outcome}` ("succeeded" or "failed") are optional.
        backup_future (`str`, *optional*):
            Asks for the same as `backup` without the verdict (k > 1).
        backup_future_terminated (`str`, *optional*):
            Asks for the same as `backup_terminated` without the verdict (k > 1).
        backup_correctness (`str`, *optional*):
            Shows the final `{score}` and asks for the verdict alone, where a task is a single step.
        step_reward (`str`, *optional*):
            Follows `{next_observation}` where the reward of the step, `{reward}`, is not 0 (r_t of equation 1), unless
            it is the final score, which is shown. Empty for none.
        observed_end (`str`, *optional*):
            Follows the observed course of an episode that ended (`bootstrap="monte_carlo"`). `{score}` is optional.
            Empty for none.
        refine (`str`, *optional*):
            Asks for an action in place of the criticised one, p_refine. `{action_format}` is optional, and so is
            `{advice}`, the critique's, or its "Yes" or "No" without any.
        correct_backup (`str`, *optional*):
            Asks a reasoning model to rewrite the thoughts before a backup, in `<corrected_think>` tags.
        correct_refine (`str`, *optional*):
            Asks a reasoning model to rewrite the thoughts before a refined action, in `<corrected_think>` tags.
        examples (`list[dict[str, str]]`, *optional*):
            Worked examples, which every conversation begins with. Each has a `task`, the `action` taken (and with
            `action_format="react"` the `thought` before it), and answers to prompts, by their names, in the order in
            which they are asked; that to `refine` is an action (`refine_thought`). Fields of the prompts have values
            of the same names. Small models need examples; [`WORKED_EXAMPLES`] has two.
        example (`str`, *optional*):
            Comes before the task of an example.
        after_examples (`str`, *optional*):
            Comes before the task after the last example.

    Raises:
        ValueError: If a prompt is not a text, lacks a required field, or has one for which there is no value, or if
            an example lacks its task or action, has an answer to no prompt, or one that cannot be read.
    """

    policy: str = POLICY
    tools: str = TOOLS
    format_react: str = FORMAT_REACT
    format_text: str = FORMAT_TEXT
    format_tool_call: str = FORMAT_TOOL_CALL
    unreadable_action: str = UNREADABLE_ACTION
    history_cut: str = HISTORY_CUT
    critique: str = CRITIQUE
    future: str = FUTURE
    evaluation: str = EVALUATION
    correctness: str = CORRECTNESS
    successor: str = SUCCESSOR
    backup: str = BACKUP
    backup_terminated: str = BACKUP_TERMINATED
    backup_future: str = BACKUP_FUTURE
    backup_future_terminated: str = BACKUP_FUTURE_TERMINATED
    backup_correctness: str = BACKUP_CORRECTNESS
    step_reward: str = STEP_REWARD
    observed_end: str = OBSERVED_END
    refine: str = REFINE
    correct_backup: str = CORRECT_BACKUP
    correct_refine: str = CORRECT_REFINE
    examples: list[dict[str, str]] = field(default_factory=list)
    example: str = EXAMPLE
    after_examples: str = AFTER_EXAMPLES

    def __post_init__(self):
        prompts = {name: text for name, text in vars(self).items() if name != "examples"}
        for name, text in prompts.items():
            if not isinstance(text, str):
                raise ValueError(f"The prompt `{name}` must be a text, got {text!r}. Leave it out for the default.")
            found, required = set(_FIELD.findall(text)), _REQUIRED_FIELDS.get(name, set())
            if required - found:
                raise ValueError(
                    f"The prompt `{name}` lacks the field `{{{min(required - found)}}}`. Add it to: {text!r}"
                )
            unknown = found - required - _OPTIONAL_FIELDS.get(name, set())
            if unknown:
                raise ValueError(
                    f"The prompt `{name}` has the field `{{{min(unknown)}}}`, for which it gets no value: {text!r}"
                )

        if not isinstance(self.examples, list):
            raise ValueError(f"`examples` must be a list of worked examples, got {self.examples!r}.")
        for example in self.examples:
            self._check_example(example)

    def _check_example(self, example: Any) -> None:
        of_texts = isinstance(example, dict) and all(isinstance(text, str) for text in example.values())
        if not of_texts or not {"task", "action"} <= example.keys():
            raise ValueError(f"An example must map names to texts, `task` and `action` among them, got {example!r}.")
        for name, text in example.items():
            if name not in _ANSWERED + _OF_EXAMPLES:
                raise ValueError(f"An example answers `{name}`. What it can have is: {_OF_EXAMPLES + _ANSWERED}.")
            if _PARSERS.get(name, str)(text) is None:
                raise ValueError(
                    f"An example's answer to the prompt `{name}` does not have the form in which its answers are "
                    f"read, so the model would learn one that is not: {text!r}"
                )
            fields = set(_FIELD.findall(vars(self)[name])) if name in _ANSWERED else set()
            fields -= {"action_format", "advice"}
            needed = {"next_observation" if field == "observed" else field for field in fields}
            if missing := needed - example.keys():
                raise ValueError(f"An example answers `{name}`, and lacks its field `{min(missing)}`: {example!r}")

    def action_format(self, name: str) -> str:
        """Describe an action in the format `name`."""
        return {"react": self.format_react, "text": self.format_text, "tool_call": self.format_tool_call}[name]

    def question(self, name: str, **values: str) -> list[Message]:
        """Ask the prompt `name`, with its fields filled in."""
        return [{"role": "user", "content": render(vars(self)[name], **values)}]

    def refinement(self, format_name: str, critique: Critique) -> list[Message]:
        """Ask for an action in place of the last one, which has a critique, in the format `format_name`."""
        return self.question("refine", action_format=self.action_format(format_name), advice=critique.in_short)

    def opening(
        self, task: list[Message], format_name: str, tools: list[dict[str, Any]], instructions: str = ""
    ) -> list[Message]:
        """
        Compose the conversation up to the first action: the system message, the worked examples, and the task.

        Args:
            task (`list[dict[str, Any]]`):
                The messages of the task, the user's first.
            format_name, tools, instructions:
                As in [`system`].
        """
        system = self.system(format_name, tools, instructions)
        shown = [message for example in self.examples for message in self._worked(example, format_name)]
        if shown:
            opens = task[0]["role"] == "user"
            own = f"{self.after_examples}\n{task[0]['content'] if opens else ''}".strip()
            task = [{"role": "user", "content": own}, *(task[1:] if opens else task)]
        return [*([{"role": "system", "content": system}] if system else []), *shown, *task]

    def _worked(self, example: dict[str, str], format_name: str) -> list[Message]:
        """Write a worked example as a conversation."""

        def act(thought: str, action: str) -> str:
            return f"Thought: {thought}\nAction: {action}" if format_name == "react" else action

        messages = [
            {"role": "user", "content": f"{self.example}\n{example['task']}".strip()},
            {"role": "assistant", "content": act(example.get("thought", ""), example["action"])},
        ]
        values = {"action_format": self.action_format(format_name), **example}
        values |= {"observed": values.get("next_observation", ""), "advice": ""}
        for name, answer in example.items():
            if name in _ANSWERED:
                answer = act(example.get("refine_thought", ""), answer) if name == "refine" else answer
                messages += [*self.question(name, **values), {"role": "assistant", "content": answer}]
                if isinstance(judged := _PARSERS.get(name, str)(answer), Critique):
                    values["advice"] = judged.in_short
        return messages

    def show_form(self, label: str, *names: str) -> bool:
        """Whether answers to prompts begin with a label: it stands in each, on a new line after a colon."""
        texts = (vars(self)[name].replace("{action_format}", self.format_react) for name in names)
        return all(re.search(rf":\s*\n\s*{label}", text) for text in texts)

    def repeated_in(self, texts: list[str]) -> list[bool]:
        """
        Tell which answers repeat several words in a row of what the roles are asked, or of a worked example. Small
        models do, and such an answer says nothing, though it can be read.
        """
        said = [value for value in vars(self).values() if isinstance(value, str)]
        said += [value for example in self.examples for value in example.values()]
        known = set().union(*map(_runs_of_words, said))
        return [not known.isdisjoint(_runs_of_words(text)) for text in texts]

    def system(self, format_name: str, tools: list[dict[str, Any]], instructions: str = "") -> str:
        """
        Compose the system message of the policy.

        Args:
            format_name (`str`):
                Format of its actions.
            tools (`list[dict[str, Any]]`):
                JSON schemas of the tools to show in the message. None where the chat template shows them.
            instructions (`str`, *optional*):
                The environment's own system message.
        """
        schemas = "\n".join(json.dumps(schema) for schema in tools)
        parts = [
            render(self.policy, action_format=self.action_format(format_name)),
            render(self.tools, tools=schemas) if tools else "",
            instructions,
        ]
        return "\n\n".join(part for part in parts if part)

    def unreadable(self, format_name: str) -> str:
        """Tell the policy that its answer was not an action in the format `format_name`."""
        return render(self.unreadable_action, action_format=self.action_format(format_name))

    @classmethod
    def from_file(cls, path: str | Path) -> "NLACPrompts":
        """
        Read prompts from a YAML or JSON file. Prompts that it does not name keep their defaults.

        Raises:
            ValueError: If the file cannot be read, or names a prompt that does not exist or is wrong.
        """
        try:
            values = yaml.safe_load(Path(path).read_text(encoding="utf-8"))  # JSON is YAML
        except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
            raise ValueError(f"{path} is not YAML or JSON: {error}") from error
        if not isinstance(values, dict):
            raise ValueError(f"{path} must map names of prompts to texts, as `policy: ...` does.")
        names = [prompt.name for prompt in fields(cls)]
        unknown = sorted(set(values) - set(names), key=str)
        if unknown:
            raise ValueError(f"{path} names the prompt `{unknown[0]}`, which does not exist. Prompts are: {names}.")
        try:
            return cls(**values)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error

    @classmethod
    def from_pretrained(cls, model: str, revision: str | None = None) -> "NLACPrompts":
        """
        Load the prompts saved with a model; the defaults if there are none.

        Args:
            model (`str`):
                Folder, or repository on the Hub.
            revision (`str`, *optional*):
                Branch, tag or commit on the Hub.
        """
        path = cached_file(model, PROMPTS_FILE, revision=revision, _raise_exceptions_for_missing_entries=False)
        return cls() if path is None else cls.from_file(path)

    def save(self, path: str | Path) -> None:
        """Write all prompts to a JSON file that [`NLACPrompts.from_file`] reads."""
        with replaced(path) as written:
            written.write_text(json.dumps(asdict(self), indent=2, ensure_ascii=False) + "\n", encoding="utf-8")

    def save_pretrained(self, directory: str | Path) -> None:
        """Write all prompts next to a model, for [`NLACPrompts.from_pretrained`]."""
        self.save(Path(directory, PROMPTS_FILE))


# A tag with its marks: bold, a heading, a list, a number. Without a colon it has a line of its own.
_TAG = r"(?:[^\w\n]|_)*(?:\d+[.)](?:[^\w\n]|_)*)?{name}[*_`]*(?:[ \t]*[:：][*_`]*|(?=[^\w\n]*$))"
_TAG_IN_LINE = r"[*_#>`-]{{0,3}}[ \t]?\b{name}[*_`]*[ \t]*[:：][*_`]*"
_PLACEHOLDER = re.compile(r"<[^<>]*>\W*", re.DOTALL)
_WORD = re.compile(r"(?P<verdict>yes|no)\b(?![-'’]\w)", re.IGNORECASE)
_SUBJECTS = r"(?:action|choice|move|decision|step|call|guess|answer|solution|it|this|that)"
# A verdict as a sentence, "The action was not the best choice", with what may follow: nothing, a mark or a reason.
_SENTENCE = (
    rf"(?P<subject>(?:(?:the|my|your|this|that|last|chosen)\s+)*{_SUBJECTS}\s+(?:was|is)(?:n['’]t)?\s+)?"
    r"(?P<negation>(?:not|non)[\s-]+)?(?:(?:indeed|clearly|certainly|definitely|already)\s+)?(?:the\s+|an?\s+)?"
    r"(?P<quality>{good}|{bad})\b"
    r"(?=\W*$|\s*[.,;:!()\n*\"”>—–]|\s+-|\s+(?:because|since|as|given|for|in|at|here|to|that|and|so)\b)"
)
_NOUNS = r"(?:\s+(?:possible|available|choice|action|move|option|decision|one|step|answer|solution))*"
_QUALITIES = {
    "Optimality": (
        rf"(?:best|optimal|ideal|(?:right|correct)\s+(?:choice|action|move|decision)){_NOUNS}",
        "sub-?optimal",
    ),
    "Correctness": (rf"(?:correct|right|valid){_NOUNS}", "incorrect|wrong|invalid|false"),
}
# What takes a "Yes" or a "No" back: in the next words, or anywhere after it.
_OTHERS = r"(?:action|choice|move|option|way|one|alternative|answer|solution)s?"
_GOOD = r"(?:best|optimal|ideal|right|correct)"
_TAKEN_BACK_AT_ONCE = {
    True: r"\s*[/?]|\W*no\W*(?:$|[.,;\n])|\W*(?:and|or|not|but|however|although|though|except|unless|if|only|partly|"
    r"mostly|almost|maybe|perhaps)\b",
    False: r"\s*[/?]|\W*(?:(?:and|or)\W+)?yes\b|\W*(?:or|but|no other|no better|nothing better)\b|"
    r"[ \t]+(?:other|better|doubt|improvement|further|need|reason|way|wonder|question|longer|matter|more|changes?|"
    rf"mistakes?|errors?|issues?|problems?|flaws?|faults?|{_OTHERS})\b",
}
_TAKEN_BACK_LATER = {
    True: rf"\b(?:a|some|many|other|are|were|much) better {_OTHERS}\b|could be (?:better|improved)|sub-?optimal|"
    r"\b(?:should|could|would|might) (?:not )?have\b|\b(?:was|is) wrong\b|"
    rf"(?:\bnot|n['’]t|\bnever)(?: \w+)?(?: the| an?)? {_GOOD}\b",
    False: rf"\b{_SUBJECTS} (?:was|is)(?: (?:indeed|clearly|already|actually))?(?: the)? {_GOOD}\b"
    r"(?![^.\n]*\b(?:but|though|although|only|if)\b)|"
    r"\b(?:no|nothing|not (?:an?|any)|n['’]t (?:an?|any)) (?:\w+ )?(?:better|mistakes?|errors?|flaws?)\b"
    r"(?![^.\n]*\bbut\b)",
}
# What is said of another action beside a verdict, which does not take it back. After advice a reason is one for it:
# "No. Ask first, because that is the best way."
_WOULD_HAVE = r"\b(?:should|could|would|might) (?:not )?have\b"
_BESIDE = {
    True: rf"\b(?:without|otherwise|or else)\b[^.\n]*?{_WOULD_HAVE}|{_WOULD_HAVE}[^.\n]*\botherwise\b|"
    r"\b(?:(?:any|every|all) other|another|anything else|the only)\b"
    r"(?![^.\n]*\b(?:better|best|optimal|succe\w+|work\w*)\b)"
    rf"[^.\n]*?{_WOULD_HAVE}|\b(?:previous|earlier|former|first|other)\b[^.\n]*?\b(?:was|is) wrong\b",
    False: r"\b(?:so that|to (?:make|be) sure|to ensure)\b[^.\n]*|"
    r"(?<=\w)(?:[;:]|,? (?:because|since|as|although|though|while|whereas)\b)[^.\n]*",
}
_NOTE = re.compile(r"\n[ \t]*(?:-{3,}|\*{3,}|_{3,}|[*_(\[]*Note\b).*", re.DOTALL | re.IGNORECASE)
_QUOTES = (('"', '"'), ("“", "”"), ("<", ">"), ("[", "]"))
_CORRECTED_THINK = re.compile(r"\s*<corrected_think>(?P<reasoning>[^<]*\S[^<]*)</corrected_think>\s*")


def parse_critique(text: str) -> Critique | None:
    """
    Parse a critique, tolerant of case, space, marks, words before it and a verdict in a sentence; `None` if it breaks
    the format, repeats the form, or if the verdict is not clear.
    """
    tag = _find_tag("Optimality", text)
    future = tag and _find_tag("Future", text[: tag.start()])
    if not future:
        return None
    told = text[future.end() : tag.start()].rstrip(" \t\n*_#`-").strip()
    return None if not told or _PLACEHOLDER.fullmatch(told) else _parse_verdict("Optimality", text, tag.end(), told)


def parse_correctness(text: str) -> Critique | None:
    """Parse the critique of a single step, as tolerant as [`parse_critique`]; `None` if it breaks the format."""
    tag = _find_tag("Correctness", text)
    return _parse_verdict("Correctness", text, tag.end()) if tag else None


def _find_tag(name: str, text: str) -> re.Match | None:
    """Find the tag that begins a line, or the one within a line if none does; `None` if there is none, or several."""
    in_line = list(re.finditer(_TAG_IN_LINE.format(name=name), text, re.IGNORECASE))
    tags = list(re.finditer(rf"^{_TAG.format(name=name)}", text, re.IGNORECASE | re.MULTILINE)) or in_line
    is_clear = len(tags) == 1 and (name == "Future" or len(in_line) <= 1)
    return tags[0] if is_clear else None


def _parse_verdict(name: str, text: str, start: int, future: str = "") -> Critique | None:
    """Parse the verdict after a tag, and the advice after that; `None` if it is missing or not clear."""
    begin = re.compile(r"[\W_]*").match(text, start).end()
    good, bad = _QUALITIES[name]
    verdict = _WORD.match(text, begin)
    if verdict:
        optimal = verdict["verdict"].lower() == "yes"
    else:
        verdict = re.compile(_SENTENCE.format(good=good, bad=bad), re.IGNORECASE).match(text, begin)
        if verdict is None:
            return None
        is_negated = bool(verdict["negation"]) or bool(re.search("n['’]t", verdict["subject"] or ""))
        is_bad = re.fullmatch(bad, verdict["quality"], re.IGNORECASE) is not None
        optimal = not (is_negated or is_bad)
        sentence = re.compile(r"[^.!?\n]*").match(text, verdict.end())[0]
        if (is_negated and is_bad) or re.search(r"\b(?:but|if|unless|except|than)\b", sentence):
            return None
        if optimal and not verdict["subject"] and (":" in sentence or " " in verdict["quality"] and sentence):
            return None  # it can name another action: "Best choice: ask first"
    rest = text[verdict.end() :]
    if re.match(_TAKEN_BACK_AT_ONCE[optimal], rest, re.IGNORECASE):
        return None
    if re.search(_TAKEN_BACK_LATER[optimal], re.sub(_BESIDE[optimal], "", rest, flags=re.IGNORECASE), re.IGNORECASE):
        return None
    advice = re.sub(r"^[\s.,:;!*_\"”’>\])，。：—–-]+", "", _NOTE.sub("", rest)).rstrip("\n *_`")
    for opening, closing in _QUOTES:
        advice = advice.removesuffix(closing) if opening in text[start:begin] else advice
    return Critique(future, optimal, "" if optimal else advice, (begin, verdict.end()))


# How answers to prompts that ask for a verdict are read.
_PARSERS = {
    **dict.fromkeys(("critique", "evaluation", "backup", "backup_terminated"), parse_critique),
    **dict.fromkeys(("correctness", "backup_correctness"), parse_correctness),
}


def begun_critique(text: str) -> str | None:
    """
    Begin what a critique lacks that was written up to here: the future, the verdict, or after a bare "No" what to do
    instead. Return the text with that beginning, or `None` if it lacks nothing. Critiques are begun for the model
    where their question shows the form, see [`NLACPrompts.show_form`].
    """
    text = text.strip()
    if not text:
        return "Future:"
    if "optimality" not in text.lower():
        return f"{text}\nOptimality:"
    is_bare = re.search(r"\bOptimality\W+No\W*$", text, re.IGNORECASE)
    return f"{text.rstrip('.')}. Instead," if is_bare else None


def begun_thought(text: str) -> str | None:
    """Begin an action with a thought, as [`begun_critique`]."""
    text = text.strip()
    if not text:
        return "Thought:"
    return f"{text}\nAction:" if "action:" not in text.lower() else None


def begun_correctness(text: str) -> str | None:
    """Begin the critique of a single step, as [`begun_critique`]."""
    return None if text.strip() else "Correctness:"


BEGUN = {parse_critique: begun_critique, parse_correctness: begun_correctness}  # what begins an answer, by its parser


def parse_future(text: str) -> Critique | None:
    """Parse a future without a verdict; `None` if there is none."""
    return Critique(text.strip(), None) if text.strip() else None


def parse_corrected_think(text: str) -> str | None:
    """Parse the thoughts in exactly one `<corrected_think>` block without other tags; `None` if there is none."""
    match = _CORRECTED_THINK.fullmatch(text)
    return match["reasoning"].strip() if match else None
