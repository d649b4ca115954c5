# SPDX-License-Identifier: Apache-2.0

"""Text of others in tokens: it never becomes a tag, a token that only the chat template and the model may write."""

import copy
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from transformers import PreTrainedTokenizerBase


# Where a tag that others wrote is broken while a template shows it. Marks of ours in their texts are broken, too.
_BREAK = "NLACBREAK"
NULL = "NLACNULL"  # what stands for `null` in a call while a template shows it
_MARKS = (_BREAK, NULL, "NLACMESSAGE")


class PlainText:
    """
    Encode text of others: of environments, tools, logs and datasets. None of its tokens is a tag.

    Tags are all tokens that were added to a tokenizer's vocabulary, whether they are flagged as special or not, except
    for white space and single characters.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase):
        added = {i: token for i, token in tokenizer.added_tokens_decoder.items() if len(token.content.strip()) > 1}
        self._tokenizer = tokenizer
        self._splitting = copy.deepcopy(tokenizer)  # it splits what is flagged as special, so everything is
        ordinary = [copy.copy(token) for token in added.values() if not token.special]
        for token in ordinary:
            token.special = True
        self._splitting.add_tokens(ordinary, special_tokens=True)
        self._tag_ids = {token.content: i for i, token in added.items()}
        self._forbidden = added.keys() - {tokenizer.unk_token_id}
        self._tag = _any_of(self._tag_ids)
        self._breakable = _any_of([*self._tag_ids, *_MARKS])
        self._names = {re.sub(r"^\W+|\W+$", "", tag) for tag in self._tag_ids} - {""}

    def encode(self, text: str) -> list[int]:
        """Encode text of others."""
        token_ids = self._split(text)
        if self._forbidden.isdisjoint(token_ids):
            return token_ids
        return [i for character in text for i in self._split(character)]  # the vocabulary has the tag as a word

    def has_tag(self, text: str) -> bool:
        """Whether a tag stands in the text."""
        return self._tag.search(text) is not None

    def render(self, template: Callable[[Any], str], value: Any) -> str:
        """Let a template show a value of others, in which every tag is broken until [`encode_rendered`]."""
        text = template(mapped(self._broken, value))
        if self._names.isdisjoint(_strings(value)):
            return text
        # A template that writes `<key>` makes a tag of the name of one.
        names_too = template(mapped(lambda part: self._broken(part, names_too=True), value))
        return min(text, names_too, key=lambda rendered: len(self._tag.findall(rendered)))

    def encode_rendered(self, text: str) -> list[int]:
        """Encode what a template renders, with its own tags, and without those in values of others, see [`render`]."""
        if _BREAK not in text:
            return self._tokenizer(text, add_special_tokens=False)["input_ids"]
        token_ids, start = [], 0
        for tag in self._tag.finditer(text):
            token_ids += [*self.encode(text[start : tag.start()].replace(_BREAK, "")), self._tag_ids[tag[0]]]
            start = tag.end()
        return [*token_ids, *self.encode(text[start:].replace(_BREAK, ""))]

    def _split(self, text: str) -> list[int]:
        return self._splitting(text, add_special_tokens=False, split_special_tokens=True)["input_ids"]

    def _broken(self, text: Any, names_too: bool = False) -> Any:
        """Break every tag in a text after its first character: no other tag ends before."""
        if not isinstance(text, str):
            return text
        if names_too and text in self._names:
            return text[0] + _BREAK + text[1:]
        parts, start = [], 0
        while tag := self._breakable.search(text, start):
            parts.append(text[start : tag.start() + 1])
            start = tag.start() + 1
        return _BREAK.join([*parts, text[start:]])


def _any_of(texts: Iterable[str]) -> re.Pattern[str]:
    """A pattern of the longest of the texts that begins at a place."""
    return re.compile("|".join(map(re.escape, sorted(texts, key=len, reverse=True))) or r"(?!)")


def mapped(change: Callable[[Any], Any], value: Any) -> Any:
    """Change all strings, numbers and nulls in a JSON value, keys included."""
    if isinstance(value, dict):
        return {mapped(change, key): mapped(change, item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [mapped(change, item) for item in value]
    return change(value)


def _strings(value: Any) -> Iterator[str]:
    """All strings in a JSON value, keys included."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from (*_strings(key), *_strings(item))
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _strings(item)
    elif isinstance(value, str):
        yield value
