"""Texts on which tokenizers disagree, made from seeds: the same on every machine."""

import random
from collections.abc import Iterator


def words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


PROSE = (
    "The quick brown fox jumps over the lazy dog. It's 5 o'clock; they'll've gone, haven't we?",
    "Don't STOP believin' — “smart quotes”, ‘single’, en–dash, ellipsis… and a naïve café.",
    "Zwölf Boxkämpfer jagen Viktor quer über den großen Sylter Deich. Straße, ÄÖÜ, ß.",
    "Où est-ce qu'on s'arrête ? Là-bas, près du cœur de l'île — d'accord ?",
    "El pingüino Wenceslao hizo kilómetros bajo exhaustiva lluvia. ¿Qué? ¡Sí! 3.º",
    "Съешь же ещё этих мягких французских булок, да выпей чаю. №5",
    "Ξεσκεπάζω την ψυχοφθόρα βδελυγμία· τί εἶναι;",
    "إنّ الله جميلٌ يحبُّ الجمال. السعر ١٢٣٤٥٦ ريال؟ نعم، شكرًا!",
    "עטלף אבק נס דרך מזגן שהתפוצץ כי חם. שָׁלוֹם 12:30",
    "हिन्दी में १२३४ और कुछ संयुक्ताक्षर: क्षत्रिय, ज्ञान।",
    "বাংলা ভাষায় যুক্তাক্ষর; தமிழ் எழுத்துக்கள்; తెలుగు లిపి ౧౨౩",
    "ภาษาไทยไม่มีช่องว่างระหว่างคำ ๑๒๓๔ บาท",
    "한국어 문장은 띄어쓰기를 한다. 2024년 12월 25일 ㄱㄴㄷ ᄒᆞᆫ글",
    "我今年25岁,住在北京市朝阳区100号。第3章第12节:共1234567元!",
    "中文,没有空格。全角ABC123,标点“引号”《书名》——破折号……",
    "日本語の文章です。カタカナとひらがな、漢字123個、ー〜々〆ヶ。",
    "ヿゟ゠ぁ龥龦一丁㐀𠀀㍿ー・ヷ半角カナ",
    "Tiếng Việt có dấu: Nguyễn Thị Hằng đã đến Đà Nẵng lúc 7h30.",
    "İstanbul'da ılık bir gün; ŞĞÇ şğç. Iıİi",
    "ქართული ენა, հայերեն լեզու, አማርኛ ፩፪፫, ᏣᎳᎩ",
)
CODE = (
    'def f(x: int) -> int:\n    """Doc."""\n    return x**2 if x != 0x1F else -1  # done\n',
    '#include <stdio.h>\r\nint main(void) {\r\n\tprintf("%d\\n", 1234567);\r\n\treturn 0;\r\n}\r\n',
    "const f = async (a) => { await a?.b ?? `t${a[0]}`; }; // ok\n/* x */ f`y`;",
    'fn main() { let v: Vec<&\'static str> = vec!["a"]; println!("{:?}", v); }',
    "SELECT a.id, COUNT(*) FROM t AS a WHERE a.x >= 10.5 AND b LIKE '%_x' GROUP BY 1;",
    "for f in *.txt; do echo \"$f\" | sed 's/a/b/g' >> out 2>&1; done && exit $?",
    '{"name": "x", "n": [1, 2.5e-10, -3, null, true], "s": "\\u00e9\\n", "o": {}}',
    '<div class="a b" id=\'c\'><!-- n --><a href="https://e.com/?q=1&r=2#s">t</a></div>',
    'package main\n\nimport "fmt"\n\nfunc main() {\n\tfmt.Println(rfid501.go)\n}\n',
    "\\begin{align} \\int_{0}^{\\infty} e^{-x^2}\\,dx &= \\frac{\\sqrt{\\pi}}{2} \\\\ \\end{align}",
    "a<-c(1,2,3);x%>%y|>z()  ~  lm(y~x+I(x^2),data=d)",
    '#!/usr/bin/env perl\nmy %h=(a=>1);$_=~s/\\s+$//;print "@{[keys %h]}\\n";',
    '@media (max-width:600px){.a>.b::after{content:"\\201C";margin:-1.5em auto!important}}',
    "| a | b |\n|---|:-:|\n| `x` | **y** |\n\n- [ ] todo\n1. one\n\n```py\nx\n```\n",
    "diff --git a/x b/x\n@@ -1,3 +1,4 @@\n-old\n+new\n \n\\ No newline at end of file\n",
    "rfid501.go v2.10.3-rc1+build.20240101 192.168.0.255:8080 2001:db8::ff00:42:8329 1e10 0b1010",
    "https://user:pw@sub.example.co.uk:8443/a/b%20c/../d.html?x[]=1&y=%E4%B8%AD#frag~!$&'()*+,;=",
    "mailto:first.last+tag@example.org C:\\Users\\x\\y.txt ~/.config/a /usr/lib64/libc.so.6",
)
EMOJI = (
    "👩\u200d👩\u200d👧\u200d👦 family, 👍🏽 skin, 🇩🇪🇯🇵 flags, ❤️\u200d🔥 heart, 1️⃣ keycap, 🏴󠁧󠁢󠁳󠁣󠁴󠁿 tag",
    "🤷🏾\u200d♀️🧑\u200d🚀😀😃😄(╯°□°)╯︵ ┻━┻ ¯\\_(ツ)_/¯ ʕ•ᴥ•ʔ",
    "é e\u0301 A\u030a\u0327\u0323 Z\u0351\u036b\u0343a\u0334l\u0321g\u0489o \u0301",
    "zero\u200bwidth\u200d join \ufeffmark \u202eright to left\u202c soft\xadhyphen",
    "𝔘𝔫𝔦𝔠𝔬𝔡𝔢 𝟙𝟚𝟛𝟜 ①②③ ⅷ½¾ ²³ ﬁ ㎏ ∑∫√≠≤∞ ←↑→ ▁▂▃ ░▒▓ ｆｕｌｌ",
    "€£¥₿ ©®™ §¶†‡ °µ ¿¡ «» ‹› „“ ‰ ‽ ⁂ ☃ ♠♥ ✓✗ ✂️",
)
CONTROL = words("""
<｜User｜> <｜Assistant｜> <think> </think> ｜DSML｜ </｜DSML｜ <｜DSML｜tool_calls> <|EOT|>
<｜begin▁of▁sentence｜> <｜end▁of▁sentence｜> <｜▁pad▁｜> <dsml: </dsml: <｜/table>｜ <｜table｜>
<｜place▁holder▁no▁0｜> <|place_holder_mm_span_0383|> <｜tool▁calls▁begin｜> <｜image｜>
<｜latest_reminder｜> <｜search▁end｜> <｜fim▁hole｜>
""")
SPACE = (
    *(" ", "  ", "    ", "\t", "\n", "\n\n", "\r\n", "\r", " \n", "\n ", "\t\n\t", "\x0b", "\x0c"),
    *("\x85", "\xa0", "\u3000", "\u2003", "\u2028", "\u2029", "\u200b", "\ufeff"),
)
FRAGMENTS = (
    *words(
        "hello World don't 's x1 1x 501 1234567 中文 日本 かな カナ 한글 é ß Ж ω م ש क्ष 😀 ÿ Ġ Ċ"
    ),
    *words("1 12 123 1234 ١٢٣٤ ½ ² . , ... !? — … 。 「 ( ) [] { } < > </ / ｜ | ▁ _ __ - -- + ~"),
    *words("-> => == ` ``` ' $ % # @ & * ** ^ : :: ; .go .com //"),
    *("\\", '"', "e\u0301", "\u0301", "👩\u200d👧", "\x00", "\x1b[0m", "\x7f"),
)
RANGES = (
    (0x00, 0x7F), (0x80, 0x24F), (0x250, 0x36F), (0x370, 0x52F), (0x530, 0x6FF), (0x900, 0xDFF),
    (0xE00, 0x11FF), (0x1E00, 0x20CF), (0x20D0, 0x2BFF), (0x3000, 0x31FF), (0x3400, 0x4E10),
    (0x9F90, 0xA4CF), (0xAC00, 0xD7A3), (0xE000, 0xE100), (0xF900, 0xFFFF), (0x10000, 0x10FFF),
    (0x1D400, 0x1D7FF), (0x1F300, 0x1FAFF), (0x20000, 0x20100), (0xE0000, 0xE01EF), (0, 0x10FFFF),
)  # fmt: skip


def character(rng: random.Random, first: int, last: int) -> str:
    """A code point of the range that has a UTF-8 form."""
    code = rng.randint(first, last)
    return chr(code) if not 0xD800 <= code <= 0xDFFF else "\ufffd"


def prefixes() -> Iterator[str]:
    for text in (PROSE[0], PROSE[7], PROSE[13], PROSE[15], CODE[0], CODE[1], CODE[15], *EMOJI[:3]):
        yield from (text[:cut] for cut in range(len(text)))
    for token in CONTROL:
        yield from (token[:cut] for cut in range(len(token)))


def runs(rng: random.Random) -> Iterator[str]:
    """Lone characters, digit runs and whitespace runs between all kinds of neighbours."""
    yield from map(chr, range(0x250))
    for length in range(1, 40):
        digits = "".join(rng.choices("0123456789", k=length))
        yield from (digits, f"a{digits}b", f"中{digits}文")
        yield from (f" {digits}.{digits}", f"-{digits}e{digits}")
    for _ in range(400):
        space = "".join(rng.choices(SPACE, k=rng.randint(1, 6)))
        yield rng.choice(FRAGMENTS) + space + rng.choice(FRAGMENTS) + rng.choice(("", space))
    for letter in ("a", "é", "中", "ア", "!", " ", "\n", "😀", "=", "\u0301", "7"):
        yield from (letter * n for n in (2, 3, 4, 5, 16, 63, 300))


def mixtures(rng: random.Random) -> Iterator[str]:
    for _ in range(900):
        yield "".join(rng.choices(FRAGMENTS, k=rng.randint(2, 24)))
    for _ in range(500):
        yield "".join(rng.choices(FRAGMENTS + SPACE, k=rng.randint(2, 40)))
    for first, last in RANGES:
        for _ in range(40):
            yield "".join(character(rng, first, last) for _ in range(rng.randint(1, 30)))
    whole = PROSE + CODE + EMOJI
    for _ in range(300):
        a, b = rng.choice(whole), rng.choice(whole)
        yield a[rng.randrange(len(a)) :] + rng.choice(SPACE) + b[: rng.randrange(len(b))]
    for text in whole:
        letters = list(text)
        rng.shuffle(letters)
        yield from ("".join(letters), text.upper(), text.title(), text[::-1], text * 3)


def user_texts() -> list[str]:
    """Texts of every kind; hardly any holds a whole control string."""
    rng = random.Random(20)
    return [*PROSE, *CODE, *EMOJI, *prefixes(), *runs(rng), *mixtures(rng)]


def control_texts() -> list[str]:
    """Texts with control strings: whole, cut, doubled, nested in one another and in prose."""
    rng = random.Random(21)
    texts = list(CONTROL)
    pool = CONTROL * 3 + FRAGMENTS + SPACE
    texts += ["".join(rng.choices(pool, k=rng.randint(2, 16))) for _ in range(600)]
    for _ in range(300):
        outer, inner = rng.choice(CONTROL), rng.choice(CONTROL)
        cut = rng.randrange(len(outer) + 1)
        texts += [outer[:cut] + inner + outer[cut:], outer[:cut] + inner, outer[cut:] + inner]
    return texts
