"""The rewriter: MSL that is no C++ becomes C++ on the same lines."""

import re

import pytest

from mslsim.rewriter import MslSyntaxError, rewrite


def body_of(text: str) -> str:
    """What becomes of a text, without the spaces that keep its columns."""
    return re.sub(r"\s+", " ", rewrite(text).text).strip()


@pytest.mark.parametrize(
    ("literal", "expected"),
    [
        ("1.5", "1.5f"),
        ("1e3", "1e3f"),
        (".5", ".5f"),
        ("0x1p-3", "0x1p-3f"),
        ("2.0h", "((half)2.0f)"),
        ("2h", "((half)2.0f)"),
        ("1.5bf", "((bfloat)1.5f)"),
        ("1.5f", "1.5f"),
        ("15", "15"),
        ("0xffu", "0xffu"),
    ],
)
def test_floating_literals_get_their_type(literal: str, expected: str) -> None:
    assert body_of(f"constant auto x = {literal};") == f"const auto x = {expected};"


def test_address_spaces_are_erased() -> None:
    assert body_of("void f(device int* a, constant P& p, thread int& b) {}") == (
        "void f( int* a, const P& p, int& b) {}"
    )
    assert body_of("struct A { int f() const constant { return 1; } };") == (
        "struct A { int f() const { return 1; } };"
    )


def test_functions_that_differ_in_address_spaces_become_one() -> None:
    text = "int f(device int* a) { return 1; }\nint f(threadgroup int* a) { return 1; }\nint g();"
    assert body_of(text) == "int f( int* a) { return 1; } int g();"
    other_types = "int f(device int* a) { return 1; }\nint f(device float* a) { return 1; }"
    assert body_of(other_types).count("int f") == 2


def test_threadgroup_variables_refer_to_shared_memory() -> None:
    assert body_of("void f() { threadgroup float a[4][2], b; threadgroup float* p = a; }") == (
        "void f() { typedef float __msl_tgt0[ 4 ] [ 2 ]; "
        "__msl_tgt0& a = ::metal::_msl::tgvar<__msl_tgt0, 0u>(); "
        "typedef float __msl_tgt1; __msl_tgt1& b = ::metal::_msl::tgvar<__msl_tgt1, 1u>(); "
        "float* p = a; }"
    )


def test_lines_stay_where_they_are() -> None:
    text = "template <typename T>\n[[kernel]] void f(\n    device T* a [[buffer(0)]]) {\n}\n"
    assert rewrite(text).text.count("\n") == text.count("\n")


def test_kernels_are_known_by_their_host_names() -> None:
    text = (
        "kernel void plain() {}\n"
        '[[host_name("named")]] [[kernel]] void f() {}\n'
        "namespace n {\n"
        "template <typename T, int N = 1>\n[[kernel]] void g(device T* a [[buffer(N)]]) {}\n"
        "}\n"
        'template [[host_name("g_" "int")]] [[kernel]] decltype(n::g<int>) n::g<int>;\n'
    )
    rewritten = rewrite(text)
    assert rewritten.kernels == ("plain", "named", "g_int")
    assert (
        'MSL_REGISTER(2, g_int, "g_int", n::__msl_p_g, 0, ":5", &n :: g < int >)' in rewritten.text
    )
    assert "MSL_REGISTER" not in rewrite(text, only=[]).text


@pytest.mark.parametrize(
    ("limit", "known"),
    [("96", "96"), ("kThreads / 2", "kThreads / 2"), ("N", "0"), ("2 * N", "0")],
)
def test_a_template_limits_its_threads_unless_its_arguments_do(limit: str, known: str) -> None:
    text = (
        f"template <int N>\n[[kernel, max_total_threads_per_threadgroup({limit})]] "
        "void f(device int* a [[buffer(0)]]) {}\n"
        'template [[host_name("f.1")]] [[kernel]] decltype(f<1>) f<1>;\n'
    )
    registered = f'MSL_REGISTER(0, f_1, "f.1", __msl_p_f, {known}, ":2", &f < 1 >)'
    assert registered in rewrite(text).text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("void f(float* a) {}", r"parameter `float \* a` has no address space"),
        ("kernel void f(device int* a) {}", r"`device int \* a` needs \[\[buffer\(index\)\]\]"),
        ("void f() { g(1; }", "unexpected }"),
        ("void f() {", "unbalanced {"),
        ("void f() { threadgroup int a = 1; }", "a in threadgroup memory is initialized"),
        (
            "template [[kernel]] decltype(f<int>) f<int>;",
            r"instantiated without \[\[host_name\(...\)\]\]",
        ),
        (
            'template [[host_name("f")]] [[kernel]] decltype(f<int>) f<int>;',
            "there is no kernel template `f` to instantiate",
        ),
    ],
)
def test_mistakes_are_named_with_their_line(text: str, message: str) -> None:
    with pytest.raises(MslSyntaxError, match=rf"^a\.metal:3: error: .*{message}"):
        rewrite(f'# 3 "a.metal"\n{text}')
