"""A user's own kernel: which path it is for, what it is given, what it lacks, and what is said of a bad file."""

from __future__ import annotations

import textwrap
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from pagedbench.backends.execute import execute
from pagedbench.backends.files import load_backend
from pagedbench.errors import UsageError
from pagedbench.words import AttnPath

from .calls import Batch, make, make_spec


def write(folder: Path, text: str) -> str:
    file = folder / "kernel.py"
    file.write_text(textwrap.dedent(text))
    return str(file)


@pytest.mark.parametrize(
    ("head", "path"),
    [
        ("def my_decode(q)", AttnPath.DECODE),
        ("def varlen_v2(q)", AttnPath.VARLEN),
        ("def my_paged_varlen(q)", AttnPath.PAGED_VARLEN),
        ('import pagedbench\n@pagedbench.backend(path="paged-varlen")\ndef mine(q)', AttnPath.PAGED_VARLEN),
    ],
)
def test_the_path_is_told_by_name_or_decorator(tmp_path: Path, head: str, path: AttnPath) -> None:
    assert load_backend(write(tmp_path, f"{head}: ...\n")).paths == (path,)


def test_a_list_of_output_and_lse_is_taken_as_operators_in_cpp_return_it(tmp_path: Path) -> None:
    file = write(tmp_path, "def my_decode(q): return [q, q[..., 0].float()]\n")
    made = make(Batch((2, 2, 2), (3, 1, 0), append=False), AttnPath.DECODE)
    output = execute(load_backend(file, "my_decode"), made.call)
    assert output.out.shape == (6, 4, 8)
    assert output.lse is not None
    assert output.lse.shape == (6, 4)


def test_arguments_come_by_name_and_decode_is_batched(tmp_path: Path) -> None:
    file = write(
        tmp_path,
        """
        seen = {}
        def my_decode(v_new, q, block_table, softmax_scale, total_seqlens, k_new, window_size, max_seqlen_k):
            seen.update(locals())
            return q, q[..., 0]
        """,
    )
    backend = load_backend(file, "my_decode")
    made = make(Batch((2, 2, 2), (3, 1, 0)), AttnPath.DECODE)
    output = execute(backend, made.call)
    seen = backend._kernels[AttnPath.DECODE].function.__globals__["seen"]  # type: ignore[attr-defined]
    assert seen["q"].shape == (3, 2, 4, 8)
    assert seen["k_new"].shape == seen["v_new"].shape == (3, 2, 2, 8)
    assert seen["block_table"] is made.call.block_table
    assert (seen["window_size"], seen["max_seqlen_k"]) == ((-1, -1), 5)
    assert seen["softmax_scale"] == pytest.approx(8**-0.5)
    assert output.out.shape == (6, 4, 8)
    assert output.lse is not None
    assert output.lse.shape == (6, 4)


def test_the_tool_appends_for_a_function_that_does_not(tmp_path: Path) -> None:
    backend = load_backend(write(tmp_path, "def my_decode(q, k_cache, v_cache): return q\n"))
    assert not backend.traits_for(AttnPath.DECODE).appends
    made = make(Batch((1, 1), (3, 4)), AttnPath.DECODE)
    execute(backend, made.call)
    assert torch.equal(made.call.k_cache.view(torch.int32), made.k_after.view(torch.int32))


def test_kwargs_take_everything(tmp_path: Path) -> None:
    backend = load_backend(write(tmp_path, "def my_varlen(**all): return all['q']\n"))
    assert backend.unsupported(make_spec(Batch((1,), (1,), window_size=(3, 0), softcap=1.0), AttnPath.VARLEN)) is None


PLAIN = Batch((1,), (4,))
LACKING = {
    "window_size": replace(PLAIN, window_size=(2, 0)),
    "softcap": replace(PLAIN, softcap=5.0),
    "sinks": replace(PLAIN, sinks=(0.0,) * 4),
    "alibi_slopes": replace(PLAIN, alibi=(0.0,) * 4),
    "num_splits": replace(PLAIN, num_splits=2),
    "causal": replace(PLAIN, causal=False),
}


@pytest.mark.parametrize("argument", LACKING)
def test_an_argument_not_taken_is_a_feature_not_had(tmp_path: Path, argument: str) -> None:
    backend = load_backend(write(tmp_path, "def my_decode(q, k_cache): ...\n"))
    assert backend.unsupported(make_spec(PLAIN, AttnPath.DECODE)) is None
    reason = backend.unsupported(make_spec(LACKING[argument], AttnPath.DECODE))
    assert reason == f"my_decode takes no argument {argument}"


def test_all_arguments_that_are_not_taken_are_named(tmp_path: Path) -> None:
    backend = load_backend(write(tmp_path, "def my_decode(q, k_cache): ...\n"))
    reason = backend.unsupported(replace(make_spec(PLAIN, AttnPath.DECODE), softcap=2.0, num_splits=3))
    assert reason == "my_decode takes no argument softcap, num_splits"


NAMELESS = {
    "lambda": "my_decode = lambda q: q",
    "partial": "import functools\ndef f(q, plan): return q\nmy_decode = functools.partial(f, plan=1)",
    "object": "class K:\n    def __call__(self, q): return q\nmy_decode = K()",
}


@pytest.mark.parametrize("kind", NAMELESS)
def test_what_has_no_name_of_its_own_goes_by_the_one_asked_for(tmp_path: Path, kind: str) -> None:
    backend = load_backend(write(tmp_path, NAMELESS[kind]), "my_decode")
    assert backend.paths == (AttnPath.DECODE,)
    reason = backend.unsupported(replace(make_spec(PLAIN, AttnPath.DECODE), softcap=2.0))
    assert reason == "my_decode takes no argument softcap"


def test_an_output_on_another_device_is_said_to_be(tmp_path: Path) -> None:
    backend = load_backend(write(tmp_path, "def my_decode(q): return q.to('meta')\n"))
    with pytest.raises(ValueError, match="output on meta, needed cpu"):
        execute(backend, make(PLAIN, AttnPath.DECODE).call)


def test_ragged_queries_do_not_fit_decode(tmp_path: Path) -> None:
    backend = load_backend(write(tmp_path, "def my_decode(q): ...\n"))
    reason = backend.unsupported(make_spec(Batch((1, 3), (4, 4)), AttnPath.DECODE))
    assert reason == "decode cannot take prefill: query lengths differ"


def test_decorator_options(tmp_path: Path) -> None:
    file = write(
        tmp_path,
        """
        import pagedbench

        @pagedbench.backend(
            path="varlen", devices=("cuda",), plan=lambda call: call.max_seqlen_q, repeatable=False, out=True,
            unsupported=lambda spec: "head_dim 8: needs a multiple of 16" if spec.head_dim % 16 else None,
        )
        def kernel(q, plan):
            return q * plan
        """,
    )
    backend = load_backend(file)
    assert "not to run on cpu" in (backend.available("cpu").reason or "")
    assert backend.unsupported(make_spec(PLAIN, AttnPath.VARLEN)) == "head_dim 8: needs a multiple of 16"
    assert not backend.traits_for(AttnPath.VARLEN).repeatable
    made = make(Batch((3,), (0,)), AttnPath.VARLEN)
    assert torch.equal(execute(backend, made.call).out, made.call.q * 3)


def test_a_class_in_a_file(tmp_path: Path) -> None:
    file = write(
        tmp_path,
        """
        from pagedbench.backends.torch_backend import TorchBackend

        class Mine(TorchBackend):
            name = "mine"
        """,
    )
    backend = load_backend(file)
    assert backend.name == "mine"
    assert backend.source == file
    assert backend.available("cpu").available


def test_several_functions_make_one_backend(tmp_path: Path) -> None:
    text = "def a_varlen(q): ...\ndef a_decode(q): ...\ndef _helper(x): ...\n"
    assert load_backend(write(tmp_path, text)).paths == (AttnPath.VARLEN, AttnPath.DECODE)


WHOLE_FILES = {
    "a partial is all it has": NAMELESS["partial"],
    "an object beside its helpers": "def helper(x): ...\ndef other(x): ...\n" + NAMELESS["object"],
    "a helper before the kernel": "def helper(x): ...\ndef my_decode(q): ...\n",
    "made by a function": "def make():\n    def inner(q): return q\n    return inner\nmy_decode = make()\n",
}


@pytest.mark.parametrize("kind", WHOLE_FILES)
def test_a_whole_file_is_taken_for_what_in_it_is_named_after_a_path(tmp_path: Path, kind: str) -> None:
    backend = load_backend(write(tmp_path, WHOLE_FILES[kind]))
    assert backend.paths == (AttnPath.DECODE,)
    reason = backend.unsupported(replace(make_spec(PLAIN, AttnPath.DECODE), softcap=2.0))
    assert reason == "my_decode takes no argument softcap"


BAD = {
    "syntax": ("def f(:\n", "f", "kernel.py:1:", "SyntaxError"),
    "raises at import": ("x = 1\nraise OSError('no GPU')\n", "f", "kernel.py:2", "OSError: no GPU"),
    "raises what is no Exception": (
        "x = 1\nclass Skipped(BaseException): ...\nraise Skipped('not here')\n",
        "f",
        "kernel.py:3",
        "Skipped: not here",
    ),
    "raises what cannot be shown": (
        "class E(Exception):\n    def __str__(self): return 1 / 0\nraise E\n",
        "f",
        "kernel.py:3",
        "E: its message cannot be shown, that raises ZeroDivisionError",
    ),
    "no such function": ("def my_decode(q): ...\n", "my_decod", "my_decod", "did you mean my_decode?"),
    "unknown argument": ("def my_decode(q, blok_table): ...\n", "my_decode", "blok_table", "did you mean block_table?"),
    "an argument of another path": ("def my_varlen(q, k_cache): ...\n", "my_varlen", "k_cache", "varlen"),
    "unknown trait": (
        "import pagedbench\n@pagedbench.backend('decode', repeatabel=False)\ndef f(q): ...\n",
        "f",
        "kernel.py:f",
        "did you mean repeatable?",
    ),
    "unknown region": (
        "import pagedbench\n@pagedbench.backend('decode', nan_regions={'tial': 'may-leak'})\ndef f(q): ...\n",
        "f",
        "kernel.py:f: f declares nan_regions of 'tial', which is no region",
        "did you mean tail?",
    ),
    "unknown contract": (
        "import pagedbench\n@pagedbench.backend('decode', nan_regions={'tail.v': 'may-lek'})\ndef f(q): ...\n",
        "f",
        "kernel.py:f: f declares 'may-lek' for tail.v, which is no contract",
        "did you mean may-leak?",
    ),
    "regions without contracts": (
        "import pagedbench\n@pagedbench.backend('decode', nan_regions='tail')\ndef f(q): ...\n",
        "f",
        "kernel.py:f: f declares nan_regions as a str, no mapping",
        'nan_regions={"hidden.v": "may-leak"}',
    ),
    "unknown path": ("import pagedbench\n@pagedbench.backend('decod')\ndef f(q): ...\n", "f", "kernel.py:2", "decod"),
    "no path": ("def kernel(q): ...\n", "kernel", "which path does kernel compute?", "pagedbench.backend(path="),
    "by position": ("def my_decode(q, /, k_cache): ...\n", "my_decode", "'q' by position only", "leave out the /"),
    "no names": ("def my_decode(*args): ...\n", "my_decode", "takes no argument by name", "block_table"),
    "a class of its own": ("class my_decode: ...\n", "my_decode", "kernel.py:my_decode", "does not derive"),
    "leaves at import": ("import sys\nsys.exit(0)\n", "f", "kernel.py:2", "SystemExit: 0"),
    "no call of the decorator": ("import pagedbench\n@pagedbench.backend\ndef f(q): ...\n", "f", "path=", "no path"),
    "not a function": ("kernel = 3\n", "kernel", "kernel.py:kernel", "needs a function"),
    "empty": ("", None, "no function in it that could be the kernel", "my_decode"),
    "an object that tells no path": (
        "class K:\n    def __call__(self, q): ...\nmine = K()\n",
        None,
        "kernel.py:mine",
        "which path does mine compute?",
    ),
    "in doubt": ("def a_decode(q): ...\ndef b_decode(q): ...\n", None, "which function", "a_decode, b_decode"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_file_is_a_usage_error_with_a_place(tmp_path: Path, case: str) -> None:
    text, name, place, words = BAD[case]
    with pytest.raises(UsageError) as error:
        load_backend(write(tmp_path, text), name)
    said = f"{error.value.message} {error.value.hint}"
    assert place in said
    assert words in said
