"""Token-level rewriter: preprocessed MSL -> C++17 for the host simulator (or CUDA).

Input is `clang -E` output, so macros are already expanded (MLX's instantiate_kernel etc. need no special care) and
line markers keep every diagnostic / debug location pointing at the original .metal file.

What it does
  * erases address-space keywords (`constant` -> `const`), MSL attributes, METAL pragmas
  * drops address-space-only overloads / specialisations that become identical after erasure
  * un-suffixed floating literals become float (MSL has no double), `1.0h` becomes half
  * `threadgroup T x[N];` inside a kernel becomes a reference to per-threadgroup storage
  * function constants become load-time constants
  * every kernel (function, or [[host_name]] instantiation of a template) gets a binding table + registration
and a few lints for things Apple's compiler rejects but C++ accepts.
"""
from __future__ import annotations
import re
from dataclasses import dataclass, field

TOK = re.compile(r'''(?P<ws>[ \t\r\f\v]+)|(?P<nl>\n)|(?P<pp>\#[^\n]*)
 |(?P<str>"(?:\\.|[^"\\\n])*")|(?P<chr>'(?:\\.|[^'\\\n])*')
 |(?P<num>\.?\d(?:[eEpP][+-]|[\w.])*)|(?P<id>[A-Za-z_$]\w*)
 |(?P<op>::|->\*?|\.\.\.|<<=|>>=|<=|>=|==|!=|&&|\|\||<<|\+\+|--|[-+*/%&|^]=|.)''', re.X)
AS = {'device', 'thread', 'threadgroup', 'constant', 'threadgroup_imageblock', 'ray_data', 'object_data'}
OPEN = {'(': ')', '[': ']', '{': '}'}
FLOAT = re.compile(r'^(?:(?:\d+\.\d*|\.\d+)(?:[eE][+-]?\d+)?|\d+[eE][+-]?\d+|0[xX][\da-fA-F.]*[pP][+-]?\d+)$')
FLOATS = re.compile(r'^((?:\d+\.\d*|\.\d+)(?:[eE][+-]?\d+)?|\d+(?:[eE][+-]?\d+)?|0[xX][\da-fA-F.]*[pP][+-]?\d+)(h|H|bf|BF)$')
NOTFUNC = {'decltype', 'alignas', '__attribute__', 'sizeof', 'noexcept', '_Alignas', '__declspec'}
BUILTINS = ['thread_position_in_grid', 'thread_position_in_threadgroup', 'threadgroup_position_in_grid',
  'threads_per_grid', 'threadgroups_per_grid', 'threads_per_threadgroup', 'dispatch_threads_per_threadgroup',
  'thread_index_in_threadgroup', 'thread_index_in_simdgroup', 'simdgroup_index_in_threadgroup',
  'simdgroups_per_threadgroup', 'threads_per_simdgroup', 'thread_index_in_quadgroup',
  'quadgroup_index_in_threadgroup', 'quadgroups_per_threadgroup', 'grid_origin']
ALIAS = {'thread_execution_width': 'threads_per_simdgroup'}


class MslSyntaxError(Exception):
    pass


@dataclass
class Tok:
    k: str
    t: str
    line: int = 0
    file: str = ''
    i: int = 0        # index in the full list


@dataclass
class Param:
    kind: str                   # 'buffer' | 'threadgroup' | builtin name
    index: str                  # a constant expression
    name: str
    type: str
    fc: str | None = None
    readonly: bool = False


@dataclass
class Kernel:
    name: str                   # source name
    params: list[Param]
    template: bool
    max_threads: str = '0'
    where: str = ''
    table: str = ''
    arity: tuple = (0, 0)       # template parameters (required, total)


@dataclass
class Result:
    text: str
    kernels: dict[str, Kernel]          # by source name
    entries: dict[str, str]             # host name -> C++ expression
    function_constants: dict[str, tuple[str, str]]
    lints: list[str] = field(default_factory=list)


class Rewriter:
    def __init__(self, text: str, target: str = 'host', only: set[str] | None = None, constants=None):
        self.target, self.only, self.constants = target, only, constants or {}
        self.full: list[Tok] = []
        self.T: list[Tok] = []
        self.out: dict[int, str] = {}
        self.after: dict[int, str] = {}
        self.kernels: dict[str, Kernel] = {}
        self.overloads: dict[str, list[Kernel]] = {}
        self.entries: dict[str, str] = {}
        self.fcs: dict[str, tuple[str, str]] = {}
        self.lints: list[str] = []
        self.uid = 0
        self.bodies: list[tuple[int, int]] = []     # function bodies (token ranges in T)
        self.dead: set[int] = set()
        self._lex(text)

    # ------------------------------------------------------------------ lexing
    def _lex(self, text):
        line, fname = 1, ''
        bol = True
        for m in TOK.finditer(text):
            k, t = m.lastgroup, m.group()
            if k == 'pp' and not bol:
                k = 'op'
            tok = Tok(k, t, line, fname, len(self.full))
            self.full.append(tok)
            if k == 'nl':
                line += 1; bol = True
            elif k == 'ws':
                pass
            elif k == 'pp':
                mm = re.match(r'#\s*(?:line\s+)?(\d+)\s+"([^"]*)"', t)
                if mm:
                    line, fname = int(mm.group(1)) - 1, mm.group(2)
                elif re.match(r'#\s*pragma\s+(METAL|unroll|nounroll)', t):
                    tok.t = ''
            else:
                bol = False
                self.T.append(tok)
        # MSL literals
        for t in self.T:
            if t.k == 'num':
                if FLOAT.match(t.t):
                    self.out[t.i] = t.t + 'f'
                else:
                    m = FLOATS.match(t.t)
                    if m:
                        base = m.group(1)
                        base += 'f' if FLOAT.match(base) else '.0f'
                        self.out[t.i] = f'(({"half" if m.group(2) in "hH" else "bfloat"}){base})'
        # address spaces
        T = self.T
        for n, t in enumerate(T):
            if t.k == 'id' and t.t in AS and self.target == 'lint':
                self.out[t.i] = {'device': '__global', 'threadgroup': '__local', 'constant': '__constant', 'thread': '__private'}.get(t.t, '')
            elif t.k == 'id' and t.t in AS:
                if t.t == 'constant' and not self._trailing_as(n):
                    self.out[t.i] = 'const'
                else:
                    self.out[t.i] = ''
            elif t.t == 'coherent' and n + 1 < len(T) and T[n + 1].t == '(':
                for q in range(n, self.match(n + 1) + 1):
                    self.out[T[q].i] = ''

    def _trailing_as(self, n):
        """address space used as a member-function qualifier: `) [const] device {|:|;`"""
        T = self.T
        p = n - 1
        while p >= 0 and T[p].t in ('const', 'volatile', 'noexcept'):
            p -= 1
        if p < 0 or T[p].t != ')':
            return False
        return n + 1 < len(T) and T[n + 1].t in ('{', ':', ';', '=', 'noexcept', 'const', 'override', '->')

    # ------------------------------------------------------------------ helpers
    def match(self, i):
        """index of the token closing the bracket at i"""
        T = self.T
        st = [OPEN[T[i].t]]
        j = i + 1
        while st:
            if j >= len(T):
                raise MslSyntaxError(f'{T[i].file}:{T[i].line}: unbalanced {T[i].t}')
            t = T[j].t
            if t in OPEN:
                st.append(OPEN[t])
            elif t in ')]}':
                if t != st[-1]:
                    raise MslSyntaxError(f'{T[j].file}:{T[j].line}: expected {st[-1]} got {t}')
                st.pop()
            j += 1
        return j - 1

    def angle(self, i):
        """index of the `>` closing the `<` at i (template context)"""
        T = self.T
        d = 0
        j = i
        while j < len(T):
            t = T[j].t
            if t == '<':
                if j == i or T[j - 1].k == 'id':      # after ')' or a literal it is less-than
                    d += 1
            elif t == '>':
                d -= 1
                if d == 0:
                    return j
            elif t in OPEN:
                j = self.match(j)
            elif t in (';', '}'):
                break
            j += 1
        raise MslSyntaxError(f'{T[i].file}:{T[i].line}: unbalanced <')

    def is_attr(self, i):
        T = self.T
        return T[i].t == '[' and i + 1 < len(T) and T[i + 1].t == '[' and T[i + 1].i == T[i].i + 1

    def src(self, a, b, erase=True):
        """source text of T[a:b]"""
        s = []
        for t in self.T[a:b]:
            s.append(self.out.get(t.i, t.t) if erase else t.t)
        return re.sub(r'\s+', ' ', ' '.join(x for x in s if x)).strip()

    def kill(self, a, b):
        """blank T[a:b] (newlines survive, so line numbers do too)"""
        for t in self.T[a:b]:
            self.out[t.i] = ''
            self.dead.add(t.i)

    def where(self, n):
        return f'{self.T[n].file}:{self.T[n].line}'

    # ------------------------------------------------------------------ parsing
    def run(self) -> Result:
        self.scope(0, len(self.T), 'ns', '')
        self.attrs()
        text = ''.join((self.out.get(t.i, t.t) if t.k not in ('nl',) else '\n') + self.after.get(t.i, '') for t in self.full)
        return Result(text, self.kernels, self.entries, self.fcs, self.lints)

    def attrs(self):
        i = 0
        while i < len(self.T):
            if self.is_attr(i) and self.T[i].i not in self.dead:
                e = self.match(i)
                self.kill(i, e + 1)
                i = e
            elif self.T[i].t == 'kernel' and self.T[i].k == 'id':
                self.out[self.T[i].i] = ''
            i += 1

    def scope(self, i, end, kind, name):
        seen: dict[str, str] = {}
        while i < end:
            t = self.T[i].t
            if t == ';':
                i += 1
            elif t in ('public', 'private', 'protected') and self.T[i + 1].t == ':':
                i += 2
            elif t == 'namespace' or (t == 'inline' and self.T[i + 1].t == 'namespace'):
                j = i
                while self.T[j].t not in ('{', ';', '='):
                    j += 1
                if self.T[j].t == '{':
                    e = self.match(j)
                    self.scope(j + 1, e, 'ns', '')
                    i = e + 1
                else:
                    while self.T[j].t != ';':
                        j += 1
                    i = j + 1
            elif t == 'extern' and self.T[i + 1].k == 'str' and self.T[i + 2].t == '{':
                e = self.match(i + 2)
                self.scope(i + 3, e, 'ns', '')
                i = e + 1
            else:
                i = self.decl(i, end, kind, seen)

    def decl(self, i, end, kind, seen):
        T = self.T
        start = i
        templ = False
        self.arity = (0, 0)
        while T[i].t == 'template' and T[i + 1].t == '<':
            templ = True
            e = self.angle(i + 1)
            ps = self.split(i + 2, e)
            req = sum(not any(T[q].t == '=' for q in range(a, b)) for (a, b) in ps)
            self.arity = (req, len(ps))
            i = e + 1
        if T[i].t == 'template':
            return self.explicit_inst(start, i, end)
        # walk to the end of the declaration
        j = i
        head_paren = -1          # the '(' that opens the parameter list
        after_paren = False
        ctor_init = False
        eq = False
        cls = enm = False
        hdr_end = None
        body = None
        while j < end:
            t = T[j].t
            if self.is_attr(j):
                j = self.match(j) + 1
                continue
            if T[j].k == 'id' and not eq and head_paren < 0:
                if t in ('struct', 'class', 'union') and not cls:
                    cls = True
                elif t == 'enum':
                    enm = True
                elif t == 'operator':
                    # operator()(..), operator[](..), operator<(..) ...
                    j += 1
                    if T[j].t == '(' and T[j + 1].t == ')':
                        j += 2
                    elif T[j].t == '[' and T[j + 1].t == ']':
                        j += 2
                    elif T[j].k == 'op':
                        while T[j].k == 'op' and T[j].t not in '(':
                            j += 1
                    else:
                        while T[j].t != '(':
                            j = self.angle(j) + 1 if T[j].t == '<' else j + 1
                    if T[j].t == '(':
                        head_paren = j
                        j = self.match(j) + 1
                        after_paren = True
                    continue
            if t == '<' and not eq and head_paren < 0 and j > start and T[j - 1].k == 'id':
                j = self.angle(j) + 1
                continue
            if t == '(':
                if head_paren < 0 and not eq and T[j - 1].t not in NOTFUNC:
                    head_paren = j
                    after_paren = True
                j = self.match(j) + 1
                continue
            if t == '[':
                j = self.match(j) + 1
                continue
            if t == '=' and not ctor_init:
                eq = True
                if hdr_end is None:
                    hdr_end = j
            if t == ':' and after_paren and not eq:
                ctor_init = True
                if hdr_end is None:
                    hdr_end = j
            if t == '{':
                if enm and not after_paren:
                    j = self.match(j) + 1
                    continue
                if cls and not after_paren and not eq:
                    if hdr_end is None:
                        hdr_end = j
                    e = self.match(j)
                    if self.duplicate(start, j, seen):
                        k = e
                        while T[k].t != ';':
                            k += 1
                        self.kill(start, k + 1)
                        return k + 1
                    self.scope(j + 1, e, 'class', '')
                    j = e + 1
                    cls = False
                    continue
                if after_paren and not eq:
                    if ctor_init and (T[j - 1].k == 'id' or T[j - 1].t == '>'):
                        j = self.match(j) + 1
                        continue
                    body = (j, self.match(j))
                    if hdr_end is None:
                        hdr_end = j
                    break
                j = self.match(j) + 1
                continue
            if t == ';':
                if hdr_end is None:
                    hdr_end = j
                break
            j += 1
        endtok = body[1] if body else j
        if head_paren >= 0 and (body or not eq or kind == 'class'):
            if self.duplicate(start, hdr_end, seen, body):
                self.kill(start, endtok + 1)
                return endtok + 1
            if T[head_paren - 1].t != 'static_assert':
                self.lint_params(head_paren)
        if body:
            self.bodies.append(body)
            self.body(body[0] + 1, body[1])
            if head_paren >= 0:
                self.maybe_kernel(start, i, head_paren, body, templ)
        elif kind == 'ns':
            self.maybe_fc(i, endtok)
        if self.target == 'cuda' and head_paren >= 0:
            self.cuda_func(start, i, templ, head_paren, body)
        return endtok + 1

    # ------------------------------------------------------------------ address-space-only duplicates
    def duplicate(self, a, b, seen, body=None):
        if self.target == 'lint':
            return False
        norm, raw = [], []
        k = a
        T = self.T
        while k < b:
            if self.is_attr(k):
                k = self.match(k) + 1
                continue
            t = T[k]
            raw.append(t.t)
            if t.k == 'id' and t.t in AS:
                o = self.out.get(t.i, '')
                if o and not (norm and norm[-1] == 'const'):
                    norm.append(o)
            elif t.t == 'const' and norm and norm[-1] == 'const':
                pass
            else:
                norm.append(t.t)
            k += 1
        n, r = ' '.join(norm), ' '.join(raw)
        bt = ' '.join(self.out.get(t.i, t.t) for t in T[body[0]:body[1]] if self.out.get(t.i, t.t)) if body else ''
        if n in seen and seen[n][0] != r:
            if body and seen[n][1] and bt != seen[n][1]:
                self.lints.append(f'{self.where(a)}: note: address-space overloads with different bodies; the simulator keeps the first')
            return True
        seen.setdefault(n, (r, bt))
        return False

    def lint_params(self, p):
        """Apple: every pointer/reference parameter needs an explicit address space"""
        for a, b in self.split(p + 1, self.match(p)):
            toks = [t for t in self.T[a:b]]
            txt = [t.t for t in toks]
            if '=' in txt:
                txt = txt[:txt.index('=')]
            d = 0
            ptr = False
            for x in txt:
                if x == '<': d += 1
                elif x == '>': d -= 1
                elif d == 0 and x in ('*', '&'): ptr = True
            if ptr and not any(x in AS for x in txt) and 'auto' not in txt:
                self.lints.append(f'{self.where(a)}: error: pointer/reference parameter `{" ".join(txt)}` has no address space')

    def split(self, a, b):
        """split T[a:b] at top-level commas"""
        T = self.T
        res, s, d, k = [], a, 0, a
        while k < b:
            t = T[k].t
            if t in OPEN:
                k = self.match(k)
            elif t == '<':
                d += 1
            elif t == '>':
                d -= 1
            elif t == ',' and d == 0:
                res.append((s, k)); s = k + 1
            k += 1
        if s < b:
            res.append((s, b))
        return res

    # ------------------------------------------------------------------ function bodies
    def body(self, a, b):
        T = self.T
        k = a
        while k < b:
            t = T[k]
            if t.k == 'id' and t.t == 'threadgroup':
                s = k
                while s > a and T[s - 1].t in ('const', 'volatile', 'static', 'constexpr'):
                    s -= 1
                while s > a and T[s - 1].t == ')' and self._alignas(s - 1) is not None:
                    s = self._alignas(s - 1)
                if s == a or T[s - 1].t in (';', '{', '}', ':'):
                    e = self.tgvar(s, k, b)
                    if e:
                        k = e
            k += 1

    def _alignas(self, close):
        d = 0
        j = close
        while j >= 0:
            if self.T[j].t == ')': d += 1
            elif self.T[j].t == '(':
                d -= 1
                if d == 0:
                    return j - 1 if self.T[j - 1].t == 'alignas' else None
            j -= 1
        return None

    def tgvar(self, s, k, b):
        """`[specs] threadgroup TYPE name[dims] [, name[dims]]* ;` -> references into threadgroup storage"""
        T = self.T
        j = k + 1
        d = 0
        name = None
        while j < b:
            t = T[j].t
            if t == '<': d += 1
            elif t == '>': d -= 1
            elif d == 0 and t in ('*', '&', '&&'):
                return None                       # a pointer/reference INTO threadgroup memory: an ordinary local
            elif d == 0 and t in ('[', ';', ',', '=', '{'):
                name = j - 1
                break
            elif t == '(':
                j = self.match(j)
            j += 1
        if name is None:
            return None
        while j < b and T[j].t == '[':
            j = self.match(j) + 1
        if T[j].t in ('=', '{'):
            self.lints.append(f'{self.where(s)}: warning: initialiser on a threadgroup variable (ignored here)')
        specs = self.src(s, k) + ' ' + self.src(k + 1, name)
        e = j
        while T[e].t != ';':
            e = self.match(e) + 1 if T[e].t in OPEN else e + 1
        decls = self.split(name, e)
        txt = ''
        for (x, y) in decls:
            z = x + 1
            while z < y and T[z].t == '[':
                z = self.match(z) + 1
            nm, dims = T[x].t, self.src(x + 1, z)
            u = self.uid; self.uid += 1
            if self.target == 'lint':
                txt += f'typedef {specs} __msl_tgt{u}{dims}; __local __msl_tgt{u}& {nm} = *(__local __msl_tgt{u}*)0; '
            elif self.target == 'host':
                txt += f'typedef {specs} __msl_tgt{u}{dims}; __msl_tgt{u}& {nm} = ::metal::_msl::tgvar<__msl_tgt{u}>({u}u); '
            else:
                # shared storage must not run constructors: raw aligned bytes
                txt += (f'typedef {specs} __msl_tgt{u}{dims}; static __attribute__((shared)) __attribute__((aligned(16))) unsigned char __msl_tgm{u}[sizeof(__msl_tgt{u})]; '
                        f'__msl_tgt{u}& {nm} = *(__msl_tgt{u}*)__msl_tgm{u}; ')
        self.kill(s, e + 1)
        self.out[T[s].i] = txt
        return e

    # ------------------------------------------------------------------ kernels
    def attr_list(self, a, b):
        """all [[...]] in T[a:b] as token-text lists, split at commas"""
        res = []
        k = a
        while k < b:
            if self.is_attr(k):
                e = self.match(k)
                for (x, y) in self.split(k + 2, e - 1):
                    res.append((x, y))
                k = e
            k += 1
        return res

    def maybe_kernel(self, start, i, paren, body, templ):
        T = self.T
        is_k, mt = False, '0'
        k = i
        while k < paren:
            if T[k].t == 'kernel' and T[k].k == 'id':
                is_k = True
            k += 1
        for (x, y) in self.attr_list(i, paren):
            if T[x].t == 'kernel': is_k = True
            if T[x].t == 'max_total_threads_per_threadgroup': mt = self.src(x + 2, y - 1)
        for t in T[i:paren]:
            if t.t == 'kernel' and t.k == 'id' and t.i not in self.out:
                self.out[t.i] = ''
        if not is_k or T[paren - 1].t == '>':      # `template <> kernel void f<X>(...)`: the primary template owns the table
            return
        name = T[paren - 1].t
        params = []
        nextbuf = 0
        used = set()
        for (a, b) in self.split(paren + 1, self.match(paren)):
            al = self.attr_list(a, b)
            e = a
            while e < b and not self.is_attr(e):
                e += 1
            pname = T[e - 1].t
            if pname == ']':
                q = e - 1
                while T[q].t != '[': q -= 1
                pname = T[q - 1].t
            toks = [t.t for t in T[a:e]]
            ty = ' '.join(toks[:-1])
            p = Param('buffer', '', pname, ty)
            p.readonly = ('const' in toks and 'device' in toks) or 'constant' in toks
            ptr = '*' in toks or '&' in toks or ']' in toks
            for (x, y) in al:
                h = T[x].t
                if h in ('buffer', 'threadgroup') and T[x + 1].t == '(':
                    p.kind = h
                    p.index = self.src(x + 2, y - 1)
                elif h == 'function_constant':
                    p.fc = self.src(x + 2, y - 1)
                elif ALIAS.get(h, h) in BUILTINS:
                    p.kind = ALIAS.get(h, h)
            if p.kind == 'buffer' and not p.index:
                if not ptr:
                    self.lints.append(f'{self.where(a)}: error: kernel parameter `{pname}` has no binding attribute')
                if 'threadgroup' in toks:
                    p.kind = 'threadgroup'
                    p.index = str(sum(q.kind == 'threadgroup' for q in params))
                else:
                    while str(nextbuf) in used: nextbuf += 1
                    p.index = str(nextbuf)
            if p.kind == 'buffer':
                used.add(p.index)
                if p.index.isdigit() and int(p.index) > 30: self.lints.append(f'{self.where(a)}: error: buffer index {p.index} > 30')
            params.append(p)
        dup = [p.index for p in params if p.kind == 'buffer' and not p.fc]
        if len(set(dup)) != len(dup):
            self.lints.append(f'{self.where(paren)}: error: duplicate buffer index in {name}')
        kern = Kernel(name, params, templ, mt, self.where(paren - 1))
        ov = self.overloads.setdefault(name, [])
        kern.arity = self.arity
        kern.table = f'__msl_p_{name}' + (f'_{len(ov)}' if ov else '')
        ov.append(kern)
        self.kernels.setdefault(name, kern)
        endi = T[body[1]].i
        self.after[endi] = self.after.get(endi, '') + self.table(kern)
        if not templ:
            host = name
            for (x, y) in self.attr_list(start, paren):
                if T[x].t == 'host_name':
                    host = ''.join(eval(t.t) for t in T[x + 2:y - 1] if t.k == 'str')
            self.register(endi, host, '&' + name, name, kern)

    def table(self, k):
        if self.target != 'host':
            return ''
        rows = []
        for p in k.params:
            kd = {'buffer': 'MSL_BUFFER', 'threadgroup': 'MSL_THREADGROUP'}.get(p.kind, 'MSL_' + p.kind.upper())
            fc = f'&{p.fc}' if p.fc else 'nullptr'
            ty = p.type.replace('\\', '\\\\').replace('"', '\\"')
            rows.append(f'{{{kd}, int({p.index or -1}), "{p.name}", "{ty}", {fc}, {"true" if p.readonly else "false"}}}')
        return f' static constexpr ::msl_param {k.table}[] = {{{", ".join(rows)}}};'

    def register(self, tok_i, host, expr, kname, kern):
        self.entries[host] = expr
        if self.only is not None and host not in self.only:
            return
        u = self.uid; self.uid += 1
        if self.target == 'host':
            q = kname.rsplit('::', 1)
            tab = (q[0] + '::' if len(q) > 1 else '') + kern.table
            w = kern.where.replace('\\', '/')
            self.after[tok_i] = self.after.get(tok_i, '') + f' MSL_REGISTER({u}, "{host}", {tab}, {kern.max_threads if not kern.template else 0}, "{w}", {expr})'
        elif self.target == 'lint':
            self.after[tok_i] = self.after.get(tok_i, '') + (f' template decltype({expr[1:]}) {expr[1:]};' if kern.template and expr.startswith('&') else '')
        else:
            self.after[tok_i] = self.after.get(tok_i, '') + self.cuda_entry(u, host, expr, kern)

    def explicit_inst(self, start, i, end):
        T = self.T
        e = i
        while T[e].t != ';':
            e = self.match(e) + 1 if T[e].t in OPEN else e + 1
        host = None
        is_k = False
        for (x, y) in self.attr_list(i, e):
            if T[x].t == 'host_name':
                host = ''.join(eval(t.t) for t in T[x + 2:y - 1] if t.k == 'str')
            elif T[x].t == 'kernel':
                is_k = True
        is_k |= any(t.t == 'kernel' for t in T[i:e])
        if not is_k:
            return e + 1
        # the entity: `NAME<ARGS>` right before ';' or before its '('
        stop = e
        k = i + 1
        while k < e:
            if self.is_attr(k):
                k = self.match(k) + 1; continue
            if T[k].t == '(':
                if T[k - 1].t not in NOTFUNC:
                    stop = k
                    break
                k = self.match(k) + 1; continue
            k += 1
        nargs = 0
        if T[stop - 1].t == '>':
            d = 0
            q = stop - 1
            while True:
                if T[q].t == '>': d += 1
                elif T[q].t == '<':
                    d -= 1
                    if d == 0: break
                elif T[q].t == ')':
                    dd = 0
                    while True:
                        if T[q].t == ')': dd += 1
                        elif T[q].t == '(':
                            dd -= 1
                            if dd == 0: break
                        q -= 1
                q -= 1
            nargs = len(self.split(q + 1, stop - 1))
        else:                                   # arguments deduced from the parameter list
            q = stop
        n0 = q - 1
        while T[n0 - 1].t == '::' and T[n0 - 2].k == 'id':
            n0 -= 2
        expr = self.src(n0, stop)
        kname = ''.join(t.t for t in T[n0:q])
        short = kname.split('::')[-1]
        if stop != e:                           # explicit signature: pick the overload by its function type
            tys = []
            for (a, b) in self.split(stop + 1, self.match(stop)):
                z = a
                while z < b and not self.is_attr(z): z += 1
                if T[z - 1].k == 'id' and z - a > 1 and T[z - 2].t not in ('::',):
                    z -= 1
                tys.append(self.src(a, z))
            expr = f'static_cast<void (*)({", ".join(tys)})>(&{expr})'
        else:
            expr = '&' + expr
        if host is None:
            host = expr
        cand = self.overloads.get(short)
        if not cand:
            self.lints.append(f'{self.where(i)}: note: instantiation of unknown kernel {kname}')
            return e + 1
        kern = next((k for k in cand if k.arity[0] <= nargs <= k.arity[1]), cand[0])
        self.kill(start, e + 1)
        self.register(T[e].i, host, expr, kname, kern)
        return e + 1

    # ------------------------------------------------------------------ function constants
    def maybe_fc(self, i, e):
        T = self.T
        al = [(x, y) for (x, y) in self.attr_list(i, e) if T[x].t == 'function_constant']
        if not al:
            return
        x, y = al[0]
        k = i
        while not self.is_attr(k):
            k += 1
        name = T[k - 1].t
        ty = re.sub(r'\b(constexpr|const|static)\b', '', self.src(i, k - 1)).strip()
        idx = self.src(x + 2, y - 1)
        self.fcs[name] = (idx, ty)
        self.kill(i, e)
        if self.target == 'lint':
            self.out[T[i].i] = f'extern __constant {ty} {name}'.replace('__constant __constant', '__constant')
        elif self.target == 'host':
            self.out[T[i].i] = f'extern const {ty} {name}; static_assert(true); const {ty} {name} = ::metal::_msl::fc<{ty}>({idx}, "{name}", &{name})'
        else:
            # CUDA: specialise at compile time, exactly as a Metal pipeline does
            v = self.constants.get(name, self.constants.get(int(eval(idx)), 0))
            self.out[T[i].i] = f'static constexpr const {ty} {name} = ({ty}){float(v) if isinstance(v, float) else int(v)}'

    # ------------------------------------------------------------------ CUDA (see cuda/)
    def cuda_func(self, start, i, templ, paren, body):
        pass

    def cuda_entry(self, u, host, expr, kern):
        nm = re.sub(r'\W', '_', host)
        rows = ', '.join('{%s, int(%s)}' % ({'buffer': 'MSL_BUFFER', 'threadgroup': 'MSL_THREADGROUP'}.get(p.kind, 'MSL_' + p.kind.upper()), p.index or -1) for p in kern.params)
        return (f' static constexpr ::msl_param __msl_q_{u}[] = {{{rows}}};'
                f' extern "C" __attribute__((global)) __attribute__((launch_bounds(1024))) void {nm}(const ::msl_launch a) {{ ::metal::_msl::cuda_thunk<decltype({expr}), {expr}, __msl_q_{u}>::go(a); }}')


def rewrite(text, **kw) -> Result:
    return Rewriter(text, **kw).run()


if __name__ == '__main__':
    import sys
    r = rewrite(open(sys.argv[1]).read(), target=sys.argv[3] if len(sys.argv) > 3 else 'host')
    if len(sys.argv) > 2:
        open(sys.argv[2], 'w').write(r.text)
    for l in r.lints:
        print(l)
    print(len(r.kernels), 'kernels', len(r.entries), 'entries')
