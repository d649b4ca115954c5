# SPDX-License-Identifier: Apache-2.0

"""Tool calls as models write them: in JSON, Python or markup, alone or with words around them."""

import ast
import json
import re
import warnings
from collections.abc import Iterator
from operator import itemgetter
from typing import Any

from .tool_calls import MAX_NESTING, is_writable


Call = tuple[str, dict[str, Any]]
Found = tuple[int, int, list[Call]]  # start and end in a text, and the calls there: none if they cannot be read

_NAME_KEYS = ("name", "tool", "tool_name", "function", "function_name", "action", "recipient_name")
_ARGUMENT_KEYS = (
    *("arguments", "args", "parameters", "params", "kwargs", "input"),
    *("tool_input", "action_input", "tool_args", "function_args"),
)
_WRAPPERS = ("tool_calls", "tool_uses", "tool_call", "function_call", "function", "tool", "action")
_NO_PARAMETER = ("id", "type", "thought", "reasoning")  # what else stands beside a name
_CONSTANTS = {"true": True, "false": False, "null": None}
_EDGES = " \t\n*`\"'“”.,:;()[]{}<>#-"  # what can stand around a name
_PAIRS = {"(": ")", "[": "]", "{": "}"}

# What only calls have, read or not.
_MARKS = re.compile(
    r"</?tool_?calls?\b|<function[=_s>]|</function|<parameter=|<invoke\b|\[TOOL_CALLS\]|<\|python_tag\|>|<[|｜]tool|"
    r"\bfunctools\[|\bAction[ _]?Input[*_`]*\s*:|[\"']tool_calls[\"']",
    re.IGNORECASE,
)
_TAGS = re.compile(r"</?[|｜]?[\w▁]+[|｜]?>|\[/?[A-Z_]+\]|```\w*")  # markup between calls
_OBSERVATION = re.compile(
    r"\n(?:[^\w\n]|_)*Observations?(?:[ \t]*\d+)?[*_`]*[ \t]*:.*|\n[ \t]*<tool_response>.*", re.DOTALL | re.IGNORECASE
)
_LAYOUT = re.compile(r"\A\n|\n\Z")  # a line break on each side of a value in markup
_STRUCTURE = re.compile(r"\{\s*[\"'}]|\[\s*\{")
_ACTION_INPUT = re.compile(r"\bAction[ _]?Input[*_`]*\s*:[*_`]*", re.IGNORECASE)
# What can stand before a call in Python on its line: marks, a few words with a colon, an assignment.
_BEFORE_CALL = r"[^\w\n]{0,9}(?:[^\n:]{1,80}:[^\w\n]{0,9})?(?:\w+\s*=\s*)?(?:await\s+)?(?:print\s*\(\s*)?(?:\w+\.)*"


def without_observation(text: str) -> str:
    """Cut off the observation that a model invented after its action, and whatever follows it."""
    return _OBSERVATION.sub("", text)


def read_calls(text: str, tools: list[dict[str, Any]]) -> list[Call] | None:
    """
    Read the names and arguments of the tool calls in an answer, however they are written:

    - JSON, or Python's literals for it, with any usual names of the keys (`name` and `arguments`, `tool` and `args`,
      `action` and `action_input`, OpenAI's `function`), with arguments as an object or as a string;
    - Python: `lookup(order="x")`, `[lookup("x"), close()]`, `lookup[x]`;
    - `Action: lookup` and `Action Input: {...}`;
    - markup: `<tool_call>...</tool_call>`, `<function=lookup>...</function>`, fences of code.

    There can be words before and after one call, but not between several. An invented observation ends the answer.
    There are no calls if the answer is not one; `None` if it looks like one and cannot be read.

    What an argument quotes is no call, whatever its form: the form that begins first is read. Nothing is read within
    what is no call or cannot be read.
    """
    reader = _CallReader(tools)
    for part in dict.fromkeys((without_observation(text).strip(), text.strip())):
        calls = reader.read(part)
        if calls:
            return calls if is_writable(calls) else None
    return None if reader.looks_like_call(text.strip()) else []


class _CallReader:
    """Read calls of the given tools."""

    def __init__(self, tools: list[dict[str, Any]]):
        functions = [tool.get("function", tool) for tool in tools]
        schemas = {function["name"]: _dict(function.get("parameters")) for function in functions}
        self.parameters = {
            name: {parameter: _dict(of) for parameter, of in _dict(schema.get("properties")).items()}
            for name, schema in schemas.items()
        }
        required = {name: schema.get("required") for name, schema in schemas.items()}
        self.required = {
            name: [one for one in names if isinstance(one, str)] if isinstance(names, list) else []
            for name, names in required.items()
        }
        self.names = f"(?i:{'|'.join(re.escape(name) for name in sorted(schemas, key=len, reverse=True))})"

    def read(self, text: str) -> list[Call]:
        """Read the calls in a text; empty if there is none that can be read."""
        forms = (self._action_input, self._markup, self._json, self._python, self._words)
        quoted_until = 0
        for start, end, calls in sorted((found for form in forms for found in form(text)), key=itemgetter(0)):
            if calls and start >= quoted_until:
                return calls
            quoted_until = max(quoted_until, end)
        return []

    def looks_like_call(self, text: str) -> bool:
        """Whether a text, in which no call can be read, is meant as one."""
        keys, names = "|".join(_NAME_KEYS), self.names
        parameters = "|".join(re.escape(name) for names in self.parameters.values() for name in names) or r"(?!)"
        patterns = (
            rf"(?:{keys})[\"'”]?\s*[:=]\s*[\"'“](?:\w+\.)*(?:{names})\b",
            rf"(?:\{{\s*|[\"'“])(?:{keys})[\"'”]?\s*:\s*(?:{names})\b",
            rf"(?m)^{_BEFORE_CALL}(?:{names})(?:[\[(]|\s*\{{)",
            rf"(?m)^[^\w\n]*(?:{names})\s+(?:{parameters})\s*[=:]",
            rf"<(?:{names})\b",
            rf"^\W*(?:{names})\W*$",
        )
        if _MARKS.search(text) or any(re.search(pattern, text) for pattern in patterns):
            return True
        if re.search(r"[\"']name[\"']\s*:", text) and re.search(r"[\"'](?:arguments|parameters)[\"']\s*:", text):
            return True
        bare = _TAGS.sub("", text).strip()
        if not _STRUCTURE.match(bare):
            return False
        try:
            return re.search(rf"[\"'](?:{names})[\"']", json.dumps(_value(bare))) is not None
        except ValueError:
            return True

    # Forms: the calls of a text in one form, and what begins as one and is none.

    def _action_input(self, text: str) -> list[Found]:
        """`Action: lookup` and `Action Input: {"order": "x"}`."""
        tag = _ACTION_INPUT.search(text)
        if tag is None:
            return []
        before = text[: tag.start()].rstrip(_EDGES)
        line = before.rpartition("\n")[2]
        written = re.sub(r"^.*?\bAction[*_`]*\s*:", "", line, flags=re.IGNORECASE).lstrip(_EDGES)
        name = self._tool(written)
        if not re.fullmatch(r"[\w.-]+", name):
            return []
        following = value = re.sub(r"^```\w*|```$", "", text[tag.end() :].strip()).strip()
        if _STRUCTURE.match(value):
            _, end, read = next(_structures(value))
            following = value[end:]
            arguments = None if read is None else self._arguments(name, read)
        elif "=" in value and (calls := self._python_calls(name, f"({value})")):
            arguments = calls[0][1]
        else:
            arguments = self._arguments(name, "" if value.lower() in ("none", "null", "n/a") else value)
        is_read = arguments is not None and not _ACTION_INPUT.search(following)
        return [(len(before) - len(written), len(text), [(name, arguments)] if is_read else [])]

    def _markup(self, text: str) -> list[Found]:
        """`<function=lookup>`, with parameters or JSON."""
        functions = list(_elements("function", text))
        calls = []
        for _, _, name, body in functions:
            name = self._tool(name)
            arguments = self._element_arguments(name, body)
            if arguments is not None:
                calls.append((name, arguments))
        is_read = len(calls) == len(functions)
        return [(functions[0][0], functions[-1][1], calls if is_read else [])] if functions else []

    def _json(self, text: str) -> list[Found]:
        """Objects and lists, or the name of a tool before the object of its arguments."""
        others: list[Found] = []
        calls: list[Call] = []
        first = last = 0
        for start, end, value in _structures(text):
            found, between = self._calls_of(value), text[last:start]
            before = _TAGS.sub("\n", text[max(0, start - 99) : start])
            name = re.search(rf"(?:^|[\n:])[^\w\n]*(?:\w+\.)*({self.names})[^\w(]*$", before)
            if not found and name and isinstance(value, dict):
                found, between = [(self._tool(name[1]), value)], ""
            if not found:
                others.append((start, end, []))
                continue
            if not calls:
                first = start
            elif re.search(r"\w", _TAGS.sub("", between)):
                return [*others, (first, len(text), [])]
            calls += found
            last = end
        return [*others, (first, last, calls)]

    def _python(self, text: str) -> list[Found]:
        """`lookup(order="x")`."""
        call = re.search(rf"(?m)^{_BEFORE_CALL}({self.names})\(", text)
        if call is None:
            return []
        start, calls = call.start(1), []
        while call:
            end = _closing(text, call.end() - 1)
            found = [] if end is None else self._python_calls(self._tool(call[1]), text[call.end() - 1 : end])
            if not found:
                return [(start, len(text) if end is None else end, [])]
            calls += found
            following = re.compile(rf"(?:[^\w`]|`(?:(?<=```)\w+)?)*(?:\w+\s*=\s*)?(?:\w+\.)*({self.names})\(")
            call = following.match(text, end)
        words_follow = re.match(r"[^\w\n]*\w", text[end:])
        return [(start, end, [] if words_follow else calls)]

    def _words(self, text: str) -> list[Found]:
        """The name of a tool alone, or with its one argument: `lookup[x]`."""
        match = re.fullmatch(rf"\W*({self.names})(?:\s*\[(?P<argument>.*)\])?\W*", text, re.DOTALL)
        if match is None:
            return []
        name, argument = self._tool(match[1]), match["argument"]
        arguments = self._arguments(name, None if argument is None else argument.strip("\"' "))
        is_read = arguments is not None and not set(self.required[name]) - arguments.keys()
        return [(match.start(1), len(text), [(name, arguments)] if is_read else [])]

    # Parts

    def _calls_of(self, value: Any, depth: int = 0) -> list[Call]:
        """The calls that a JSON value stands for; empty if it is something else, or nested too deeply."""
        if depth > MAX_NESTING:
            return []
        if isinstance(value, list):
            found = [self._calls_of(one, depth + 1) for one in value]
            return [call for calls in found for call in calls] if all(found) else []
        if not isinstance(value, dict):
            return []
        if len(value) == 1:
            [(key, arguments)] = value.items()
            if key in self.parameters and isinstance(arguments, dict):
                return [(key, arguments)]
        for key in _WRAPPERS:
            if isinstance(value.get(key), (dict, list)):
                return self._calls_of(value[key], depth + 1)
        keys = [key for key in _NAME_KEYS if isinstance(value.get(key), str)]
        keys.sort(key=lambda key: self._tool(value[key]) not in self.parameters)
        if not keys:
            return []
        name = self._tool(value[keys[0]])
        given = [key for key in _ARGUMENT_KEYS if key in value]
        if given:
            arguments = self._arguments(name, value[given[0]])
        else:
            known = self.parameters.get(name, {})
            arguments = {k: v for k, v in value.items() if k != keys[0] and (k in known or k not in _NO_PARAMETER)}
            if name not in self.parameters or arguments.keys() - known.keys():
                return []
        return [] if arguments is None else [(name, arguments)]

    def _arguments(self, name: str, value: Any) -> dict[str, Any] | None:
        """Arguments from an object, from one in a string, or from the value of the one parameter that is needed."""
        if isinstance(value, dict):
            return value
        if value is None or value == "":
            return {}
        if isinstance(value, str):
            try:
                parsed = _value(value)
            except ValueError:
                parsed = None
            if isinstance(parsed, dict):
                return parsed
            if isinstance(parsed, str):  # with quotation marks
                value = parsed
        parameters = self.parameters.get(name, {})
        needed = list(parameters) if len(parameters) == 1 else self.required.get(name, [])
        if len(needed) != 1 or (isinstance(value, list) and parameters.get(needed[0], {}).get("type") != "array"):
            return None
        return {needed[0]: self._typed(name, needed[0], value)}

    def _element_arguments(self, name: str, body: str | None) -> dict[str, Any] | None:
        """The arguments in what `<function=...>` holds."""
        if body is None:
            return None
        elements = list(_elements("parameter", body))
        if not elements:
            return self._arguments(name, body.strip())
        found = {p: self._typed(name, p, _LAYOUT.sub("", value)) for _, _, p, value in elements if value is not None}
        return found if len(found) == len(elements) else None  # a tag without its other, or a name twice

    def _typed(self, name: str, parameter: str, value: Any) -> Any:
        """A value in words as the schema of its parameter wants it."""
        schema = self.parameters.get(name, {}).get(parameter, {})
        types = schema.get("type", "string")
        if not isinstance(value, str) or "string" in (types if isinstance(types, list) else [types]):
            return value
        try:
            return _value(value)
        except ValueError:
            return value

    def _python_calls(self, name: str, arguments: str) -> list[Call]:
        """The call of a tool with arguments in Python, `("x", close=True)`."""
        names = list(self.parameters.get(name, {}))
        try:
            call = _expression(f"f{arguments}")
            if not isinstance(call, ast.Call):
                return []
            given = [_literal(argument) for argument in call.args]
            named = {keyword.arg: _literal(keyword.value) for keyword in call.keywords}
        except ValueError:
            return []
        if len(given) == 1 and isinstance(given[0], dict) and given[0].keys() <= set(names):
            given, named = [], {**given[0], **named}
        if len(given) > len(names) or None in named:
            return []
        return [(name, {**dict(zip(names, given, strict=False)), **named})]

    def _tool(self, name: str) -> str:
        """The tool that is meant by a name: without a namespace and marks, in any case."""
        name = name.strip(_EDGES)
        last = name.rpartition(".")[2]
        same = [tool for tool in self.parameters if tool.lower() == last.lower()]
        found = [tool for tool in (name, last) if tool in self.parameters] or same
        return found[0] if found else name


def _structures(text: str) -> Iterator[tuple[int, int, Any]]:
    """Objects and lists of objects in a text, with start and end; `None` for what begins as one and cannot be read."""
    at = 0
    while match := _STRUCTURE.search(text, at):
        end = _closing(text, match.start())
        at = len(text) if end is None else end
        try:
            value = None if end is None else _value(text[match.start() : end])
        except ValueError:
            value = None
        yield match.start(), at, value


def _elements(kind: str, text: str) -> Iterator[tuple[int, int, str, str | None]]:
    """The outer `<kind=name>...</kind>` in a text: start, end, name and content; `None` without a second tag."""
    opening, depth = None, 0
    for tag in re.finditer(rf"<{kind}=[\"']?(?P<name>[\w.-]+)[\"']?>|</{kind}>", text):
        opening = opening or tag
        depth += 1 if tag["name"] else -1
        if depth <= 0:
            body = text[opening.end() : tag.start()] if depth == 0 else None
            yield opening.start(), tag.end(), opening["name"] or "", body
            opening, depth = None, 0
    if opening:
        yield opening.start(), len(text), opening["name"], None


def _closing(text: str, start: int) -> int | None:
    """The end of what the bracket at `start` opens; `None` if it does not end."""
    open_, quote = [], ""
    for match in re.compile(r"\\.|[\"'()\[\]{}]", re.DOTALL).finditer(text, start):
        mark = match[0]
        if quote:
            quote = "" if mark == quote else quote
        elif mark in "\"'":
            quote = mark
        elif mark in _PAIRS:
            open_.append(_PAIRS[mark])
        elif mark in ")]}":
            if open_.pop() != mark:
                return None
            if not open_:
                return match.end()
    return None


def _dict(value: Any) -> dict[str, Any]:
    """A part of a schema; empty where it says nothing, as `true` does."""
    return value if isinstance(value, dict) else {}


def _value(text: str) -> Any:
    """Read a value in JSON, or in Python's literals; if it is neither, raise a `ValueError`."""
    try:
        return json.loads(text, strict=False)
    except (ValueError, RecursionError):
        return _literal(_expression(text))


def _expression(text: str) -> ast.expr:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # escapes that Python does not know
            return ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, RecursionError, MemoryError) as error:
        raise ValueError("it is not an expression") from error


def _literal(node: ast.expr) -> Any:
    match node:
        case ast.Constant(value=None | bool() | int() | float() | str()):
            return node.value
        case ast.Name(id=name) if name in _CONSTANTS:
            return _CONSTANTS[name]
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as number)):
            return -number
        case ast.List(elts=elements) | ast.Tuple(elts=elements):
            return [_literal(element) for element in elements]
        case ast.Dict(keys=keys, values=values) if all(key is not None for key in keys):
            return {str(_literal(key)): _literal(value) for key, value in zip(keys, values, strict=True)}
    raise ValueError(f"{type(node).__name__} is not a literal")
