"""How refusals read: turns what the file format's validation finds into problems in the project's words.

Each has the field as a user writes it, its place, what stands there, what is needed, and the nearest known key.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from pagedbench.errors import Problem
from pagedbench.scenario.document import Needs, ScenarioDocument
from pagedbench.scenario.model import Origin
from pagedbench.scenario.source import MAX_DIGITS, MAX_PROBLEMS, Position, shown

# What other libraries call it: worth a better answer than the nearest spelling.
_OTHER_NAMES = {
    "page_size": "block_size",
    "num_pages": "num_blocks",
    "page_table": "block_table",
    "block_tables": "block_table",
    "kv_lens": "cached_lens",
    "k_lens": "cached_lens",
    "seq_lens": "cached_lens",
    "cache_seqlens": "cached_lens",
    "q_lens": "query_lens",
    "num_heads_kv": "num_kv_heads",
    "num_key_value_heads": "num_kv_heads",
    "num_attention_heads": "num_heads",
    "num_query_heads": "num_heads",
    "head_size": "head_dim",
    "scale": "softmax_scale",
    "sliding_window": "window",
    "logits_soft_cap": "softcap",
    "s_aux": "sinks",
    "alibi_slopes": "alibi",
    "bf16": "bfloat16",
    "fp16": "float16",
    "half": "float16",
    "fp32": "float32",
    "float": "float32",
    "fp8": "float8_e4m3fn",
    "fp8_e4m3": "float8_e4m3fn",
}
_ALIGNED = "causal is aligned to the bottom right: token i of q sees keys up to k − q + i; top-left is not offered"
# Keys for what the language leaves out on purpose, each with the reason.
_LEFT_OUT = dict.fromkeys(("causal_alignment", "causal_align", "causal_mode", "alignment", "bottom_right"), _ALIGNED)
_TRUTH_WORDS = {"yes": "true", "on": "true", "y": "true", "no": "false", "off": "false", "n": "false"}
_LONGEST_WORD = 100
_NUMBER_WITH_MARKS = re.compile(r"[-+]?[0-9][0-9_,]*")
_TYPE_WORDS = {
    "int_type": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "string_type": "text",
    "list_type": "a list",
    "dict_type": "a mapping",
    "model_type": "a mapping",
    "finite_number": "a finite number",
}
# Words for a bound, and the name that the validation gives its value.
_BOUND_WORDS = {
    "greater_than_equal": ("at least", "ge"),
    "greater_than": ("more than", "gt"),
    "less_than_equal": ("at most", "le"),
    "too_short": ("at least", "min_length"),
    "string_too_short": ("at least", "min_length"),
    "too_long": ("at most", "max_length"),
    "string_too_long": ("at most", "max_length"),
}


@dataclass
class Refusals:
    """Collects the problems of one document (variant), each with its place. At most `MAX_PROBLEMS` are kept."""

    origin: Origin
    keys: Mapping[str, Position] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    def add(self, field_path: str, found: str, needed: str, hint: str | None = None, *, at_key: bool = False) -> None:
        """Note a problem at the field's value, or at its key."""
        if len(self.problems) >= MAX_PROBLEMS:
            return
        where = self.origin.where(field_path)
        if at_key and field_path in self.keys:
            line, column = self.keys[field_path]
            where = f"{self.origin.file}:{line}:{column}"
        self.problems.append(Problem(field_path, found, needed, hint, where))

    def add_validation(self, error: ValidationError, data: object) -> None:
        """Note everything that validation of `data` against the file format found."""
        raw_errors = error.errors(include_url=False, include_input=False)[: 4 * MAX_PROBLEMS]
        for item in _one_branch(_Item.of(raw, data) for raw in raw_errors):
            found, needed, hint = item.words()
            at_key = item.kind == "extra_forbidden"
            self.add(item.path, found, needed, hint, at_key=at_key)


def describe(value: object) -> str:
    """A value of a file, in a few words, as it stands there."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return {math.inf: ".inf", -math.inf: "-.inf"}.get(value, ".nan" if math.isnan(value) else repr(value))
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list):
        text = json.dumps(value, default=str) if len(value) <= 8 else ""
        return text if text and len(text) <= 40 else f"a list of {len(value):,}"
    return f"'{shown(value)}'" if isinstance(value, str) else shown(str(value))


def nearest(word: str, known: Iterable[str]) -> str | None:
    """«did you mean …?» for the known word that is nearest, or None."""
    names = list(known)
    if len(word) > _LONGEST_WORD:
        return None
    other = _OTHER_NAMES.get(word)
    match = [other] if other in names else get_close_matches(word, names, n=1, cutoff=0.6)
    return f"did you mean {match[0]}?" if match else None


@dataclass(frozen=True)
class _Item:
    """One finding of the validation: `path` as a user writes it, `value` there, `union` the path of the field whose
    alternatives it is about (empty if none), `info` the field's declaration, `section` the model around it."""

    kind: str
    path: str
    value: object
    context: Mapping[str, Any]
    union: str
    info: FieldInfo | None
    section: type[BaseModel]

    @classmethod
    def of(cls, raw: Any, data: object) -> _Item:
        """Reads a finding. Its location mixes fields, indices and names of alternatives; the data tells them apart."""
        path, union, value = "", "", data
        section: type[BaseModel] = ScenarioDocument
        inner: type[BaseModel] | None = section
        info: FieldInfo | None = None
        location = raw["loc"]
        for step, part in enumerate(location):
            names_nothing = step == len(location) - 1 and raw["type"] == "missing"
            if isinstance(part, int) and isinstance(value, list):
                path, value = f"{path}[{part}]", value[part]
            elif names_nothing or (isinstance(value, dict) and part in value):
                section = inner or section
                path = f"{path}.{part}" if path else str(part)
                value = None if names_nothing else value[part]  # type: ignore[index]
                if part in section.model_fields:
                    info = section.model_fields[part]
                    inner = _section_in(info.annotation)
            else:
                union = path
        return cls(raw["type"], path, value, raw.get("ctx", {}), union, info, section)

    def words(self) -> tuple[str, str, str | None]:
        """Found, needed, hint."""
        if self.kind == "missing":
            told = self.info.description if self.info else None
            return "nothing", "a value", _EXAMPLES.get(self.path, told)
        if self.kind == "extra_forbidden":
            return self._unknown_key()
        return self._found(), self._needed(), self._hint()

    def _unknown_key(self) -> tuple[str, str, str | None]:
        key = self.path.rpartition(".")[2]
        home = next((name for name, section in _sections() if key in section.model_fields), None)
        hint = _LEFT_OUT.get(key) or nearest(key, self.section.model_fields)
        if home and hint is None:
            hint = f"{key} belongs to {home}"
        return "an unknown key", f"one of {', '.join(self.section.model_fields)}", hint

    def _found(self) -> str:
        if self.kind in ("string_too_long", "too_long", "too_short") and isinstance(self.value, (str, list)):
            return f"{len(self.value):,} " + ("characters" if isinstance(self.value, str) else "entries")
        return describe(self.value)

    def _needed(self) -> str:
        declared = next((m.words for m in self.info.metadata if isinstance(m, Needs)), None) if self.info else None
        if declared and (self.union == self.path or self.kind == "string_pattern_mismatch"):
            return declared
        if self.kind == "literal_error":
            return "one of " + ", ".join(self._choices())
        if self.kind in _BOUND_WORDS:
            words, name = _BOUND_WORDS[self.kind]
            return f"{words} {self.context[name]:,}"
        return _TYPE_WORDS.get(self.kind, declared or "another value")

    def _hint(self) -> str | None:
        value = self.value
        if self.path in _EXAMPLES and not isinstance(value, dict):
            return _EXAMPLES[self.path]
        if self.path in _MEANT and (meant := _MEANT[self.path](value)):
            return meant
        if not isinstance(value, str):
            whole = isinstance(value, float) and value.is_integer() and self.kind == "int_type"
            return f"write {int(value)}" if whole and self._takes(int(value)) else None  # type: ignore[call-overload]
        if self.kind == "bool_type" and value.lower() in _TRUTH_WORDS:
            return f"only YAML 1.1 takes '{value}' for a truth value: write {_TRUTH_WORDS[value.lower()]}"
        if self.kind in ("int_type", "float_type") and _NUMBER_WITH_MARKS.fullmatch(value):
            plain = re.sub("[_,]", "", value)
            return f"write {plain}, without quotes or separators" if self._takes(float(plain)) else None
        return nearest(value, self._choices())

    def _takes(self, number: float) -> bool:
        """Whether a number that is proposed would not be refused in its turn."""
        bounds = [*self.info.metadata, *_constraints(self.info.annotation)] if self.info else []
        return abs(number) < 10**MAX_DIGITS and all(
            getattr(bound, "ge", number) <= number <= getattr(bound, "le", number)
            and number > getattr(bound, "gt", -math.inf)
            for bound in bounds
        )

    def _choices(self) -> list[str]:
        return re.findall(r"'([^']*)'", str(self.context.get("expected", "")))


def _meant_causal(value: object) -> str | None:
    aligned = isinstance(value, str) and re.search("left|right|top|bottom|upper|lower", value.lower())
    return _ALIGNED if aligned else None


def _meant_dtype(value: object) -> str | None:
    if not isinstance(value, str) or not re.search("fp8|float8|e4m3", value.lower()):
        return None
    return "dtype is that of the output, too: write kv_dtype: float8_e4m3fn, and q_dtype where the queries are fp8"


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _meant_stride(value: object) -> str | None:
    return "name both, in elements: {block: …, token: …}" if _is_whole(value) or isinstance(value, list) else None


# The least that does, of sections that every scenario has.
_EXAMPLES = {
    "batch": "write for example batch: {query_lens: [1, 1], cached_lens: [30, 70]}",
    "batch.query_lens": "write a number for each sequence: [1, 1]",
    "batch.cached_lens": "write a number for each sequence: [30, 70]",
    "cache": "write for example cache: {block_size: 16}",
    "attention": "write for example attention: {model: llama-3.1-8b}, or {num_heads: 8, num_kv_heads: 2, head_dim: 64}",
}


# What somebody most likely meant by a value that a field does not take, where another field says it.
_MEANT: dict[str, Callable[[object], str | None]] = {
    "attention.causal": _meant_causal,
    "attention.dtype": _meant_dtype,
    "attention.window": lambda value: (
        "leave it out for no window; 1 is the token's own key only" if _is_whole(value) and value == 0 else None
    ),
    "attention.window_size": lambda value: (
        f"window: {value} is the window of so many keys" if _is_whole(value) and value > 0 else None  # type: ignore[operator]
    ),
    "cache.layout.k_stride": _meant_stride,
    "cache.layout.v_stride": _meant_stride,
}


def _one_branch(items: Iterable[_Item]) -> list[_Item]:
    """One problem a field with alternatives: what is wrong inside the one that was meant, or the field as a whole."""
    every = list(items)
    inside = {item.union for item in every if item.union and item.path != item.union}
    kept: dict[tuple[str, str], _Item] = {}
    for item in every:
        about_whole = bool(item.union) and item.path == item.union
        if about_whole and item.union in inside:
            continue
        key = (item.path, "" if about_whole else item.kind)
        best = kept.get(key)
        if best is None or (best.kind != "literal_error" and item.kind == "literal_error"):
            kept[key] = item
    return list(kept.values())


def _constraints(annotation: Any) -> Iterator[Any]:
    """What is said of the numbers of a field in the types that its own is made of: bounds, among others."""
    yield from getattr(annotation, "metadata", ())
    for part in get_args(annotation):
        yield from _constraints(part)


def _section_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for part in get_args(annotation) if (found := _section_in(part))), None)


def _sections() -> list[tuple[str, type[BaseModel]]]:
    named = [(name, _section_in(info.annotation)) for name, info in ScenarioDocument.model_fields.items()]
    return [(name, section) for name, section in named if section is not None]
