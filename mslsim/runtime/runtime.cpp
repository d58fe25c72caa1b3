// MSL host simulator runtime: fibres, rendezvous, dispatch, memory/race checking.
// One OS worker runs one threadgroup at a time; every GPU thread is a fibre (own stack, hand-rolled switch).
#define MSL_RUNTIME
#include "simulator.h"
#include <algorithm>
#include <atomic>
#include <csetjmp>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <map>
#include <mutex>
#include <pthread.h>
#include <random>
#include <string>
#include <sys/mman.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>
#include <xmmintrin.h>
#include <unordered_map>
#include <vector>

extern "C" { __attribute__((tls_model("initial-exec"), visibility("default"))) __thread msl_thread* __msl_cur; }

// ------------------------------------------------------------------ context switch
// void msl_switch(void** save_sp, void* load_sp): callee-saved registers only.
asm(R"(
.text
.globl msl_switch
.type msl_switch,@function
msl_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  popq %rax
  jmp *%rax
.size msl_switch,.-msl_switch
)");
extern "C" void msl_switch(void** save, void* load);

namespace {
enum { READY = 0, AT_SIMD, AT_QUAD, AT_SGBAR, AT_TGBAR, DONE };
constexpr uint32_t MAXT = 1024, SLOT = 64, TGMEM = 32768, MAXBUF = 31;
constexpr size_t STACK = 128 << 10, PAGE = 4096, TGARENA = 256 << 10;

struct Buf { char* base; size_t size; char* map; size_t maplen; int flags; struct Cell* shadow; };
enum { F_READONLY = 1, F_FRESH = 2 };

// ---- shadow memory: one cell per byte of threadgroup memory / of each writable buffer
struct Stamp { uint32_t tg; uint16_t tid; uint16_t tep; uint32_t sep; uint32_t pc; };   // tg: 1-based, 0 = never
struct Cell { Stamp w, r1, r2; uint8_t watomic, r1atomic, r2atomic, pad; };

struct Report { std::string kind, text; uint64_t pc1, pc2; };
} // namespace

struct msl_simdgroup {
  alignas(64) unsigned char slot[32][SLOT];
  alignas(64) unsigned char res[32][SLOT];
  alignas(64) unsigned char qres[8][32 * SLOT / 8 * 8];
  uint32_t live, ready, simd, sgbar, tgbar, active;
  uint32_t sep_tg, sep_dev;       // SIMD-group memory epochs (threadgroup / device memory)
  msl_thread* lanes[32];
};

struct Alloc { uint32_t off, size; };
struct msl_group {
  msl_thread* th = nullptr;       // MAXT contexts
  msl_simdgroup* sgs = nullptr;
  char* stacks = nullptr;
  char* tgmem = nullptr;          // arena
  uint32_t tgoff = 0, tgused = 0;
  std::vector<void*> tgvars;      // by site
  std::vector<Alloc> allocs;
  Cell* tgshadow = nullptr;
  msl_shape sh{};
  void* tgbufs[32];
  uint32_t n = 0, nsg = 0, cursg = 0;
  uint32_t tep_tg = 0, tep_dev = 0; // threadgroup epochs
  uint32_t tglin = 0;
  void* main_sp = nullptr;
  const msl_kernel* k = nullptr;
  struct Dispatch* d = nullptr;
  bool failed = false;
  std::mt19937 rng;
  uint32_t bar_flags = 0;
  sigjmp_buf jb;
  bool in_fibre = false;
};

using Launch = msl_launch;
struct Dispatch {
  Launch* L; uint32_t ntg[3], total; std::atomic<uint32_t> next{0}; std::atomic<bool> stop{false};
  Buf bufs[MAXBUF]; void* bufptrs[MAXBUF]; std::vector<uint32_t> order;
  std::mutex mu; std::vector<Report> reps; std::map<std::pair<std::string, std::pair<uint64_t, uint64_t>>, int> seen;
  std::atomic<uint64_t> switches{0};
};

static __attribute__((tls_model("initial-exec"))) __thread msl_group* G = nullptr;
static Dispatch* D = nullptr;     // one dispatch at a time
static std::vector<const msl_kernel*>* g_reg = nullptr;
struct FC { uint64_t i; double d; };
static std::map<int, FC> g_fc_idx; static std::map<std::string, FC> g_fc_name;
struct FCSeen { int idx; std::string name; const void* addr; bool defined; };
static std::vector<FCSeen>* g_fc_seen = nullptr;

static void report(const char* kind, const std::string& text, uint64_t pc1 = 0, uint64_t pc2 = 0) {
  std::lock_guard<std::mutex> l(D->mu);
  auto key = std::make_pair(std::string(kind), std::make_pair(pc1, pc2));
  if (D->seen[key]++ || D->reps.size() > 64) return;
  D->reps.push_back({kind, text, pc1, pc2});
}
static std::string whoami(msl_thread* t) {
  char b[200]; msl_group* g = G;
  snprintf(b, sizeof b, "thread %u (lane %u of SIMD-group %u) of threadgroup (%u,%u,%u)", t->tid, t->lane, t->sgi, g->sh.tgid3[0], g->sh.tgid3[1], g->sh.tgid3[2]);
  return b;
}
[[noreturn]] static void die(const char* kind, const std::string& text, uint64_t pc1 = 0, uint64_t pc2 = 0) {
  report(kind, text, pc1, pc2);
  G->failed = true; D->stop = true;
  void* junk; msl_switch(&junk, G->main_sp); __builtin_unreachable();
}

// ------------------------------------------------------------------ scheduling
static inline uint32_t pick(msl_group* g, uint32_t m) {
  switch (D->L->order) {
    case 0: return __builtin_ctz(m);
    case 1: return 31 - __builtin_clz(m);
    default: { uint32_t r = g->rng() & 31; uint32_t x = m & (~0u << r); return __builtin_ctz(x ? x : m); }
  }
}
static inline void go(msl_group* g, msl_thread* from, msl_thread* to) {
  if (from == to) return;
  __msl_cur = to; msl_switch(&from->sp, to->sp);
}
static std::string lanes_str(uint32_t m) { char b[32]; snprintf(b, sizeof b, "0x%08x", m); return b; }

// Everything in SIMD-group `s` is blocked: can some rendezvous complete?  Returns true when lanes became ready.
static bool resolve(msl_group* g, msl_simdgroup* s) {
  uint32_t wait = s->simd | s->sgbar;
  if (!wait) return false;
  // group the waiting lanes by call site
  const void* site = nullptr; uint32_t mask = 0; bool uniform = true;
  for (uint32_t m = wait; m; m &= m - 1) { uint32_t l = __builtin_ctz(m); const void* p = s->lanes[l]->site; if (!mask) site = p; if (p == site) mask |= 1u << l; else uniform = false; }
  if (!uniform || s->tgbar) {
    if (D->L->divergence == 0) {
      std::string t = "divergent SIMD-group operation in SIMD-group " + std::to_string(s->lanes[__builtin_ctz(wait)]->sgi) + ": lanes " + lanes_str(mask) + " wait here";
      uint64_t pc2 = 0; uint32_t other = 0;
      for (uint32_t m = wait; m; m &= m - 1) { uint32_t l = __builtin_ctz(m); if (s->lanes[l]->site != site) { pc2 = (uint64_t)s->lanes[l]->site; other |= 1u << l; } }
      if (s->tgbar) { uint32_t l = __builtin_ctz(s->tgbar); pc2 = (uint64_t)s->lanes[l]->site; other |= s->tgbar; t += ", lanes " + lanes_str(other) + " at a threadgroup_barrier"; }
      else t += ", lanes " + lanes_str(other) + " at another operation";
      die("divergence", t, (uint64_t)site, pc2);
    }
    // permissive: lowest call address first (inner/earlier code), like a min-PC reconvergence scheduler
    for (uint32_t m = wait; m; m &= m - 1) { const void* p = s->lanes[__builtin_ctz(m)]->site; if (p < site) site = p; }
    mask = 0; for (uint32_t m = wait; m; m &= m - 1) { uint32_t l = __builtin_ctz(m); if (s->lanes[l]->site == site) mask |= 1u << l; }
    if (D->L->divergence == 1) report("divergence-note", "SIMD-group operation with only lanes " + lanes_str(mask) + " of live " + lanes_str(s->live), (uint64_t)site);
  }
  msl_thread* t0 = s->lanes[__builtin_ctz(mask)];
  if (t0->state == AT_SIMD) {
    s->active = mask;
    if (t0->op_fin) ((msl_fin)t0->op_fin)(&s->slot[0][0], mask, &s->res[0][0], t0->op_ctx);
    if (D->L->simd_ops_order_memory) { s->sep_tg++; s->sep_dev++; }
  } else { s->sep_tg += (t0->op_size & 2) ? 1 : 0; s->sep_dev += (t0->op_size & 1) ? 1 : 0; }
  for (uint32_t m = mask; m; m &= m - 1) s->lanes[__builtin_ctz(m)]->state = READY;
  s->simd &= ~mask; s->sgbar &= ~mask; s->ready |= mask;
  return true;
}

// Called when the current fibre cannot continue: run something else (returns when it is resumed).
static void next(msl_thread* me) {
  msl_group* g = G;
  msl_simdgroup* s = &g->sgs[g->cursg];
  for (;;) {
    if (s->ready) { go(g, me, s->lanes[pick(g, s->ready)]); return; }
    if (resolve(g, s)) continue;
    // whole SIMD-group parked at the threadgroup barrier, or finished: another SIMD-group
    bool found = false; uint32_t start = D->L->order == 2 ? g->rng() % g->nsg : 0;
    for (uint32_t i = 0; i < g->nsg; i++) {
      uint32_t q = D->L->order == 1 ? g->nsg - 1 - i : (start + i) % g->nsg;
      msl_simdgroup* z = &g->sgs[q];
      if (z->ready || ((z->simd | z->sgbar) && resolve(g, z))) { g->cursg = q; s = z; found = true; break; }
    }
    if (found) continue;
    // nobody can run: threadgroup barrier complete?
    uint32_t live = 0, atbar = 0; const void* site = nullptr; const void* other = nullptr; uint32_t fin = 0;
    for (uint32_t q = 0; q < g->nsg; q++) { live += __builtin_popcount(g->sgs[q].live); atbar += __builtin_popcount(g->sgs[q].tgbar);
      for (uint32_t m = g->sgs[q].tgbar; m; m &= m - 1) { const void* p = g->sgs[q].lanes[__builtin_ctz(m)]->site; if (!site) site = p; else if (p != site) other = p; } }
    fin = g->n - live;
    if (!live) { void* junk; __msl_cur = nullptr; msl_switch(&junk, g->main_sp); __builtin_unreachable(); }
    if (atbar != live) die("deadlock", "no thread can run: " + std::to_string(atbar) + " at a barrier, " + std::to_string(live) + " alive");
    if (other) die("barrier-divergence", "threads of one threadgroup wait at different threadgroup_barrier calls", (uint64_t)site, (uint64_t)other);
    if (fin) report("barrier-exited", std::to_string(fin) + " of " + std::to_string(g->n) + " threads returned before a threadgroup_barrier the others reach", (uint64_t)site);
    for (uint32_t q = 0; q < g->nsg; q++) { msl_simdgroup* z = &g->sgs[q]; for (uint32_t m = z->tgbar; m; m &= m - 1) z->lanes[__builtin_ctz(m)]->state = READY; z->ready |= z->tgbar; z->tgbar = 0; }
    g->tep_tg += (g->bar_flags & 2) ? 1 : 0; g->tep_dev += (g->bar_flags & 1) ? 1 : 0;
    uint32_t q = D->L->order == 1 ? g->nsg - 1 : D->L->order == 2 ? g->rng() % g->nsg : 0;
    while (!g->sgs[q].ready) q = (q + 1) % g->nsg;
    g->cursg = q; s = &g->sgs[q];
  }
}

extern "C" {
static void fibre_main() {
  msl_thread* t = __msl_cur; msl_group* g = t->g;
  g->k->entry(t, &g->sh);
  t = __msl_cur; g = G;
  msl_simdgroup* s = t->sg; uint32_t b = 1u << t->lane;
  t->state = DONE; s->live &= ~b; s->ready &= ~b;
  next(t);
  __builtin_unreachable();
}

unsigned char* __msl_collective(msl_thread* t, const void* v, msl_u32 size, msl_u32 scope, msl_fin fin, void* ctx) {
  msl_simdgroup* s = t->sg; msl_group* g = G; uint32_t b = 1u << t->lane;
  t->site = __builtin_return_address(0); t->op_fin = (const void*)fin; t->op_ctx = ctx;
  switch (size) { case 0: break; case 4: memcpy(s->slot[t->lane], v, 4); break; case 8: memcpy(s->slot[t->lane], v, 8); break; default: memcpy(s->slot[t->lane], v, size); }
  s->ready &= ~b;
  if (scope == 4) {                                  // quad: completes as soon as its own four lanes are there
    t->state = AT_QUAD;
    uint32_t q = t->lane >> 2, qm = (0xfu << (q * 4)) & s->live, here = 0;
    for (uint32_t m = qm; m; m &= m - 1) { uint32_t l = __builtin_ctz(m); if (s->lanes[l]->state == AT_QUAD && s->lanes[l]->site == t->site) here |= 1u << l; }
    if (here == qm) {
      if (fin) fin(&s->slot[0][0], qm, s->qres[q], ctx);
      for (uint32_t m = qm; m; m &= m - 1) s->lanes[__builtin_ctz(m)]->state = READY;
      s->ready |= qm;
      return s->qres[q];
    }
    next(t);
    return s->qres[q];
  }
  t->state = AT_SIMD; s->simd |= b;
  next(t);
  return &s->res[0][0];
}
msl_u32 __msl_active(msl_thread* t) { return t->sg->active; }

void __msl_threadgroup_barrier(msl_u32 flags) {
  msl_thread* t = __msl_cur; msl_simdgroup* s = t->sg; uint32_t b = 1u << t->lane;
  t->site = __builtin_return_address(0); t->state = AT_TGBAR; s->ready &= ~b; s->tgbar |= b; G->bar_flags = flags;
  next(t);
}
void __msl_simdgroup_barrier(msl_u32 flags) {
  msl_thread* t = __msl_cur; msl_simdgroup* s = t->sg; uint32_t b = 1u << t->lane;
  t->site = __builtin_return_address(0); t->state = AT_SGBAR; s->ready &= ~b; s->sgbar |= b;
  t->op_size = flags;
  next(t);
}
void __msl_spin() {                                   // atomics: let the other lanes make progress now and then
  msl_thread* t = __msl_cur; msl_group* g = G; static thread_local uint32_t n = 0;
  if (D->stop && g) die("stopped", "dispatch stopped");
  if (++n & 63) return;
  msl_simdgroup* s = t->sg;
  // rotate inside the SIMD-group, or over to another SIMD-group
  uint32_t others = s->ready & ~(1u << t->lane);
  if (others) { go(g, t, s->lanes[__builtin_ctz(others & (~0u << t->lane) ? others & (~0u << t->lane) : others)]); return; }
  for (uint32_t i = 1; i < g->nsg; i++) { uint32_t q = (g->cursg + i) % g->nsg; msl_simdgroup* z = &g->sgs[q]; if (z->ready) { g->cursg = q; go(g, t, z->lanes[__builtin_ctz(z->ready)]); return; } }
}
void __msl_note(const char* kind, const char* msg) { msl_thread* t = __msl_cur; report(kind, std::string(msg) + ": " + whoami(t), (uint64_t)t->site); }

static void* tg_alloc(msl_group* g, uint32_t size, uint32_t align) {
  uint32_t red = D->L->check ? 64 : 0;
  uint32_t off = (g->tgoff + red + align - 1) & ~(align - 1);
  g->tgused = ((g->tgused + align - 1) & ~(align - 1)) + size;
  if (g->tgused > TGMEM) die("threadgroup-memory", "kernel needs " + std::to_string(g->tgused) + " bytes of threadgroup memory (limit 32768)");
  g->tgoff = off + size; g->allocs.push_back({off, size});
  memset(g->tgmem + off, 0xff, size);                // NaN poison
  return g->tgmem + off;
}
void* __msl_tgvar(msl_u32 site, msl_u32 size, msl_u32 align) {
  msl_group* g = G;
  if (site < g->tgvars.size() && g->tgvars[site]) return g->tgvars[site];
  if (site >= g->tgvars.size()) g->tgvars.resize(site + 64);
  return g->tgvars[site] = tg_alloc(g, size, std::max(align, 16u));
}
void __msl_register(const msl_kernel* k) { if (g_reg) g_reg->push_back(k); }
bool __msl_fc_get(int index, const char* name, const void* addr, msl_u64* i, double* d) {
  auto a = g_fc_idx.find(index); auto b = g_fc_name.find(name); const FC* f = a != g_fc_idx.end() ? &a->second : b != g_fc_name.end() ? &b->second : nullptr;
  if (g_fc_seen) g_fc_seen->push_back({index, name, addr, f != nullptr});
  if (!f) return false; *i = f->i; *d = f->d; return true;
}
} // extern C
static std::map<const void*, bool> g_fc_addr;
extern "C" bool __msl_fc_defined(const void* addr) {
  if (g_fc_seen) for (auto& s : *g_fc_seen) if (s.addr == addr) return s.defined;
  auto i = g_fc_addr.find(addr); return i != g_fc_addr.end() && i->second;
}

// ------------------------------------------------------------------ instrumented accesses
// Kernels are compiled with -fsanitize=thread but linked against THESE hooks instead of the TSan runtime.
static inline bool ordered_tg(const Stamp& p, uint16_t tid, uint16_t tep, uint32_t sep) {   // happens-before within one threadgroup
  if (p.tid == tid) return true;
  if (p.tep != tep) return true;
  return (p.tid >> 5) == (tid >> 5) && p.sep != sep;
}
static void race(const char* what, const char* mem, msl_thread* t, const Stamp& p, uint64_t pc, uint64_t base, const void* addr, const std::string& where) {
  char b[400];
  if (p.tg == G->tglin + 1)
    snprintf(b, sizeof b, "%s race on %s memory %s: %s vs thread %u of the same threadgroup, no barrier in between", what, mem, where.c_str(), whoami(t).c_str(), p.tid);
  else
    snprintf(b, sizeof b, "%s race on %s memory %s: %s vs thread %u of threadgroup #%u", what, mem, where.c_str(), whoami(t).c_str(), p.tid, p.tg - 1);
  (void)base; (void)addr;
  report("race", b, pc, p.pc ? (uint64_t)p.pc + (pc & ~0xffffffffull) : 0);
}
static std::string tg_where(msl_group* g, uint32_t off) {
  for (size_t i = 0; i < g->allocs.size(); i++) { auto& a = g->allocs[i]; if (off >= a.off && off < a.off + a.size) return "variable #" + std::to_string(i) + " +" + std::to_string(off - a.off); }
  return "+" + std::to_string(off);
}
static inline void check_cells(msl_group* g, msl_thread* t, Cell* c, size_t n, bool write, bool atomic, bool tgmem, uint64_t pc, const std::string& where, bool fresh) {
  uint16_t tep = tgmem ? g->tep_tg : g->tep_dev; uint32_t sep = tgmem ? t->sg->sep_tg : t->sg->sep_dev; uint32_t me = g->tglin + 1;
  Stamp now{me, (uint16_t)t->tid, tep, sep, (uint32_t)pc};
  for (size_t i = 0; i < n; i++) {
    Cell& x = c[i];
    auto conc = [&](const Stamp& p) { if (!p.tg) return false; if (p.tg != me) return !tgmem; return !ordered_tg(p, t->tid, tep, sep); };
    if (conc(x.w) && !(atomic && x.watomic)) { race(write ? "write/write" : "read-after-write", tgmem ? "threadgroup" : "device", t, x.w, pc, 0, 0, where); }
    if (write) {
      if (conc(x.r1) && !(atomic && x.r1atomic)) race("write-after-read", tgmem ? "threadgroup" : "device", t, x.r1, pc, 0, 0, where);
      else if (conc(x.r2) && !(atomic && x.r2atomic)) race("write-after-read", tgmem ? "threadgroup" : "device", t, x.r2, pc, 0, 0, where);
      x.w = now; x.watomic = atomic;
    } else {
      bool has = tgmem ? x.w.tg == me : x.w.tg != 0;
      if (!has && (tgmem || fresh)) report("uninitialised", std::string("read of never-written ") + (tgmem ? "threadgroup" : "output") + " memory " + where + " by " + whoami(t), pc);
      if (x.r1.tg != me || x.r1.tid == t->tid || !conc(x.r1)) { x.r1 = now; x.r1atomic = atomic; }
      else { x.r2 = now; x.r2atomic = atomic; }
    }
  }
}
static void access(uintptr_t a, size_t n, bool write, bool atomic, uint64_t pc) {
  msl_group* g = G; if (!g || !g->in_fibre) return;
  msl_thread* t = __msl_cur; if (!t) return;
  uintptr_t tb = (uintptr_t)g->tgmem;
  if (a - tb < TGARENA) {
    uint32_t off = a - tb; bool ok = false;
    for (auto& al : g->allocs) if (off >= al.off && off + n <= al.off + al.size) { ok = true; break; }
    if (!ok) { report("bounds", std::string(write ? "write" : "read") + " of " + std::to_string(n) + " bytes outside every threadgroup array (offset " + std::to_string(off) + ") by " + whoami(t), pc); return; }
    check_cells(g, t, g->tgshadow + off, n, write, atomic, true, pc, tg_where(g, off), false);
    return;
  }
  static thread_local uint32_t last = 0;
  for (uint32_t j = 0; j < MAXBUF; j++) {
    uint32_t i = last + j; if (i >= MAXBUF) i -= MAXBUF;
    Buf& b = D->bufs[i]; if (!b.map) continue;
    if (a - (uintptr_t)b.map < b.maplen) {
      last = i;
      uintptr_t base = (uintptr_t)b.base;
      if (a < base || a + n > base + b.size) { report("bounds", std::string(write ? "write" : "read") + " of " + std::to_string(n) + " bytes at offset " + std::to_string((long)(a - base)) + " of buffer " + std::to_string(i) + " (" + std::to_string(b.size) + " bytes) by " + whoami(t), pc); return; }
      if (b.shadow) check_cells(g, t, b.shadow + (a - base), n, write, atomic, false, pc, "buffer " + std::to_string(i) + " +" + std::to_string(a - base), b.flags & F_FRESH);
      return;
    }
  }
}
#define PC ((uint64_t)__builtin_return_address(0))
extern "C" {
void __tsan_init() {}
#define RW(n) void __tsan_read##n(void* p) { access((uintptr_t)p, n, false, false, PC); } void __tsan_write##n(void* p) { access((uintptr_t)p, n, true, false, PC); } \
  void __tsan_unaligned_read##n(void* p) { access((uintptr_t)p, n, false, false, PC); } void __tsan_unaligned_write##n(void* p) { access((uintptr_t)p, n, true, false, PC); } \
  void __tsan_read_write##n(void* p) { access((uintptr_t)p, n, false, false, PC); access((uintptr_t)p, n, true, false, PC); } void __tsan_unaligned_read_write##n(void* p) { access((uintptr_t)p, n, false, false, PC); access((uintptr_t)p, n, true, false, PC); } \
  void __tsan_volatile_read##n(void* p) { access((uintptr_t)p, n, false, true, PC); } void __tsan_volatile_write##n(void* p) { access((uintptr_t)p, n, true, true, PC); }
RW(1) RW(2) RW(4) RW(8) RW(16)
void __tsan_read_range(void* p, size_t n) { access((uintptr_t)p, n, false, false, PC); }
void __tsan_write_range(void* p, size_t n) { access((uintptr_t)p, n, true, false, PC); }
void* __tsan_memcpy(void* d, const void* s, size_t n) { access((uintptr_t)s, n, false, false, PC); access((uintptr_t)d, n, true, false, PC); return memcpy(d, s, n); }
void* __tsan_memmove(void* d, const void* s, size_t n) { access((uintptr_t)s, n, false, false, PC); access((uintptr_t)d, n, true, false, PC); return memmove(d, s, n); }
void* __tsan_memset(void* d, int c, size_t n) { access((uintptr_t)d, n, true, false, PC); return memset(d, c, n); }
void __tsan_func_entry(void*) {} void __tsan_func_exit() {}
void __tsan_vptr_update(void**, void*) {} void __tsan_vptr_read(void**) {}
#define AT(T, n) \
  T __tsan_atomic##n##_load(const volatile T* p, int) { access((uintptr_t)p, sizeof(T), false, true, PC); return __atomic_load_n(p, 5); } \
  void __tsan_atomic##n##_store(volatile T* p, T v, int) { access((uintptr_t)p, sizeof(T), true, true, PC); __atomic_store_n(p, v, 5); } \
  T __tsan_atomic##n##_exchange(volatile T* p, T v, int) { access((uintptr_t)p, sizeof(T), true, true, PC); return __atomic_exchange_n(p, v, 5); } \
  T __tsan_atomic##n##_fetch_add(volatile T* p, T v, int) { access((uintptr_t)p, sizeof(T), true, true, PC); return __atomic_fetch_add(p, v, 5); } \
  T __tsan_atomic##n##_fetch_sub(volatile T* p, T v, int) { access((uintptr_t)p, sizeof(T), true, true, PC); return __atomic_fetch_sub(p, v, 5); } \
  T __tsan_atomic##n##_fetch_and(volatile T* p, T v, int) { access((uintptr_t)p, sizeof(T), true, true, PC); return __atomic_fetch_and(p, v, 5); } \
  T __tsan_atomic##n##_fetch_or(volatile T* p, T v, int) { access((uintptr_t)p, sizeof(T), true, true, PC); return __atomic_fetch_or(p, v, 5); } \
  T __tsan_atomic##n##_fetch_xor(volatile T* p, T v, int) { access((uintptr_t)p, sizeof(T), true, true, PC); return __atomic_fetch_xor(p, v, 5); } \
  int __tsan_atomic##n##_compare_exchange_strong(volatile T* p, T* e, T v, int, int) { access((uintptr_t)p, sizeof(T), true, true, PC); return __atomic_compare_exchange_n(p, e, v, false, 5, 5); } \
  int __tsan_atomic##n##_compare_exchange_weak(volatile T* p, T* e, T v, int, int) { access((uintptr_t)p, sizeof(T), true, true, PC); return __atomic_compare_exchange_n(p, e, v, true, 5, 5); } \
  T __tsan_atomic##n##_compare_exchange_val(volatile T* p, T e, T v, int, int) { access((uintptr_t)p, sizeof(T), true, true, PC); __atomic_compare_exchange_n(p, &e, v, false, 5, 5); return e; }
AT(uint8_t, 8) AT(uint16_t, 16) AT(uint32_t, 32) AT(uint64_t, 64)
void __tsan_atomic_thread_fence(int) {} void __tsan_atomic_signal_fence(int) {}

// UBSan: only the checks we enable; the data block starts with {file, line, col}
struct SrcLoc { const char* file; uint32_t line, col; };
static void ub(const char* what, SrcLoc* l, const std::string& extra = "") {
  if (!G || !G->in_fibre) return;
  report("ub", std::string(what) + extra + " at " + (l->file ? l->file : "?") + ":" + std::to_string(l->line) + ":" + std::to_string(l->col) + " by " + whoami(__msl_cur), PC);
}
void __ubsan_handle_out_of_bounds(void* d, uintptr_t i) { ub("array index out of bounds", (SrcLoc*)d, " (index " + std::to_string((long)(i >> 32 ? (long)i : (int)i)) + ")"); }
void __ubsan_handle_divrem_overflow(void* d, uintptr_t, uintptr_t) { ub("integer division by zero or overflow", (SrcLoc*)d); }
void __ubsan_handle_shift_out_of_bounds(void* d, uintptr_t, uintptr_t r) { ub("shift amount out of range", (SrcLoc*)d, " (" + std::to_string((long)r) + ")"); }
void __ubsan_handle_float_cast_overflow(void* d, uintptr_t) { ub("float to integer conversion out of range", (SrcLoc*)d); }
void __ubsan_handle_type_mismatch_v1(void* d, uintptr_t p) { ub(p ? "misaligned access" : "null access", (SrcLoc*)d); }
void __ubsan_handle_missing_return(void* d) { ub("missing return", (SrcLoc*)d); }
void __ubsan_handle_builtin_unreachable(void* d) { ub("unreachable", (SrcLoc*)d); }
}

// ------------------------------------------------------------------ coverage (-fsanitize-coverage=trace-pc-guard,pc-table)
struct CovMod { uint32_t* g0; uint32_t* g1; const uintptr_t* pcs; size_t npcs; std::vector<uint8_t> hit; };
static std::vector<CovMod*> g_cov; static std::vector<std::pair<CovMod*, uint32_t>> g_covid{{nullptr, 0}};
extern "C" {
void __sanitizer_cov_trace_pc_guard_init(uint32_t* a, uint32_t* b) {
  if (a == b || *a) return;
  CovMod* m = new CovMod{a, b, nullptr, 0, {}}; m->hit.resize(b - a); g_cov.push_back(m);
  for (uint32_t* p = a; p < b; p++) { *p = g_covid.size(); g_covid.push_back({m, (uint32_t)(p - a)}); }
}
void __sanitizer_cov_pcs_init(const uintptr_t* a, const uintptr_t* b) { if (!g_cov.empty() && !g_cov.back()->pcs) { g_cov.back()->pcs = a; g_cov.back()->npcs = (b - a) / 2; } }
void __sanitizer_cov_trace_pc_guard(uint32_t* g) { if (uint32_t i = *g) { auto& e = g_covid[i]; e.first->hit[e.second] = 1; *g = 0; } }
}

// ------------------------------------------------------------------ workers
static void on_fault(int sig, siginfo_t* si, void* uc) {
  msl_group* g = G;
  if (!g || !g->in_fibre) { signal(sig, SIG_DFL); raise(sig); return; }
  uint64_t pc = ((ucontext_t*)uc)->uc_mcontext.gregs[REG_RIP];
  uintptr_t a = (uintptr_t)si->si_addr; std::string s; msl_thread* t = __msl_cur;
  if (sig == SIGUSR1) s = "timeout";
  else if (sig == SIGILL) s = "access outside a thread-local array (or unreachable code)";
  else {
    char b[300]; snprintf(b, sizeof b, "%s at address %#lx", sig == SIGFPE ? "arithmetic fault" : "memory fault", (long)a); s = b;
    long best = 1l << 40; 
    for (uint32_t i = 0; i < MAXBUF; i++) if (D->bufs[i].map) { long off = (long)(a - (uintptr_t)D->bufs[i].base); long dist = off < 0 ? -off : off > (long)D->bufs[i].size ? off - (long)D->bufs[i].size : 0;
      if (dist < best && dist < (64l << 20)) { best = dist; snprintf(b, sizeof b, "%s: offset %ld of buffer %u (%zu bytes)%s", a < PAGE ? "null" : "out-of-bounds or read-only access", off, i, D->bufs[i].size, D->bufs[i].flags & F_READONLY ? " [read-only]" : ""); s = b; } }
    if (g->stacks && a - (uintptr_t)g->stacks < (STACK + PAGE) * (size_t)MAXT) s = "fibre stack overflow";
    if (si->si_code == 0x80) s = "general protection fault (misaligned or wild pointer)";
    else if (a < PAGE) s = "null pointer access (unbound buffer?)";
  }
  report(sig == SIGUSR1 ? "timeout" : sig == SIGILL ? "ub" : "fault", s + " by " + (t ? whoami(t) : "?"), pc + 1);
  g->failed = true; D->stop = true;
  siglongjmp(g->jb, 1);
}

static msl_group* make_group() {
  msl_group* g = new msl_group;
  g->th = (msl_thread*)calloc(MAXT, sizeof(msl_thread));
  if (posix_memalign((void**)&g->sgs, 64, sizeof(msl_simdgroup) * 32)) abort();
  memset((void*)g->sgs, 0, sizeof(msl_simdgroup) * 32);
  size_t tot = (STACK + PAGE) * (size_t)MAXT;         // one guard page under each stack (huge pages measured: no gain)
  g->stacks = (char*)mmap(nullptr, tot, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  for (uint32_t i = 0; i < MAXT; i++) mprotect(g->stacks + i * (STACK + PAGE), PAGE, PROT_NONE);
  g->tgmem = (char*)mmap(nullptr, TGARENA + 2 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  mprotect(g->tgmem, PAGE, PROT_NONE); mprotect(g->tgmem + PAGE + TGARENA, PAGE, PROT_NONE); g->tgmem += PAGE;
  return g;
}
static void start_group(msl_group* g, uint32_t lin) {
  Launch* L = D->L; msl_shape& sh = g->sh;
  g->tglin = lin;
  uint32_t id[3] = {lin % D->ntg[0], lin / D->ntg[0] % D->ntg[1], lin / D->ntg[0] / D->ntg[1]};
  for (int i = 0; i < 3; i++) {
    sh.tgid3[i] = id[i]; sh.tg_nominal[i] = L->threadgroup[i]; sh.tgs[i] = D->ntg[i];
    sh.grid[i] = L->grid_is_threads ? L->grid[i] : L->grid[i] * L->threadgroup[i];
    sh.tg[i] = L->grid_is_threads ? std::min(L->threadgroup[i], L->grid[i] - id[i] * L->threadgroup[i]) : L->threadgroup[i];
  }
  g->n = sh.tg[0] * sh.tg[1] * sh.tg[2]; g->nsg = (g->n + 31) / 32; sh.nthreads = g->n; sh.nsimd = g->nsg; sh.bufs = D->bufptrs; sh.tgbufs = g->tgbufs;
  g->tgoff = g->tgused = 0; g->allocs.clear(); std::fill(g->tgvars.begin(), g->tgvars.end(), nullptr);
  g->tep_tg = g->tep_dev = 0; g->failed = false; g->cursg = 0;
  g->rng.seed(L->seed * 7919 + lin);
  for (int i = 0; i < 32; i++) g->tgbufs[i] = nullptr;
  for (uint32_t q = 0; q < g->nsg; q++) { msl_simdgroup& s = g->sgs[q]; uint32_t c = std::min(32u, g->n - q * 32); s.live = s.ready = c == 32 ? ~0u : (1u << c) - 1; s.simd = s.sgbar = s.tgbar = s.active = 0; s.sep_tg = s.sep_dev = 0; for (uint32_t l = 0; l < 32; l++) s.lanes[l] = l < c ? &g->th[q * 32 + l] : nullptr; }
  uint32_t tx = 0, ty = 0, tz = 0;
  for (uint32_t i = 0; i < g->n; i++) {
    msl_thread& t = g->th[i];
    t.tid = i; t.lane = i & 31; t.sgi = i >> 5; t.state = READY; t.sg = &g->sgs[i >> 5]; t.g = g; t.op_scope = t.op_size = 0;
    t.tid3[0] = tx; t.tid3[1] = ty; t.tid3[2] = tz;
    if (++tx == sh.tg[0]) { tx = 0; if (++ty == sh.tg[1]) { ty = 0; ++tz; } }
    for (int k = 0; k < 3; k++) t.gid3[k] = id[k] * L->threadgroup[k] + t.tid3[k];
    // colour the stack tops so 1024 of them do not share the same cache sets
    char* top = g->stacks + (size_t)(i + 1) * (STACK + PAGE) - (i % 61) * 64 - 64;
    void** sp = (void**)((uintptr_t)top & ~63ull);
    *--sp = nullptr;                                  // fake return address: entry must see rsp % 16 == 8
    *--sp = (void*)fibre_main;
    for (int k = 0; k < 6; k++) *--sp = nullptr;
    t.sp = sp;
  }
}
static void* worker(void* arg) {
  msl_group*& cached = *(msl_group**)arg;
  if (!cached) cached = make_group();
  msl_group* g = cached; G = g; Launch* L = D->L; g->d = D; g->k = L->kernel;
  if (L->check && !g->tgshadow) g->tgshadow = (Cell*)mmap(nullptr, sizeof(Cell) * TGARENA, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (L->check) madvise(g->tgshadow, sizeof(Cell) * TGARENA, MADV_DONTNEED);
  stack_t ss{}, old{}; ss.ss_size = 256 << 10; ss.ss_sp = malloc(ss.ss_size); sigaltstack(&ss, &old);
  unsigned csr = _mm_getcsr(); if (L->flush_denormals) _mm_setcsr(csr | 0x8040);
  for (uint32_t k; !D->stop && (k = D->next++) < D->total;) {
    start_group(g, D->order.empty() ? k : D->order[k]);
    uint32_t q0 = L->order == 1 ? g->nsg - 1 : 0; g->cursg = q0;
    if (!sigsetjmp(g->jb, 1)) {
      bool ok = true;
      { // dynamic threadgroup memory
        msl_thread fake{}; (void)fake;
        for (int i = 0; i < 32 && ok; i++) if (L->threadgroup_bytes[i]) {
          uint32_t sz = L->threadgroup_bytes[i];
          if (g->tgused + sz > TGMEM) { report("threadgroup-memory", "more than 32768 bytes of threadgroup memory"); D->stop = true; ok = false; break; }
          g->tgbufs[i] = tg_alloc(g, sz, 16);
        }
      }
      if (ok) {
        msl_thread* t = g->sgs[q0].lanes[pick(g, g->sgs[q0].ready)];
        __msl_cur = t; g->in_fibre = true;
        msl_switch(&g->main_sp, t->sp);
      }
    }
    g->in_fibre = false; __msl_cur = nullptr;
    if (g->failed) break;
  }
  _mm_setcsr(csr);
  sigaltstack(&old, nullptr); free(ss.ss_sp); G = nullptr;
  return nullptr;
}
static double now() { timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec + 1e-9 * t.tv_nsec; }

// ------------------------------------------------------------------ C API
static msl_group* g_groups[64];
extern "C" {

}
struct msl_library { void* h; std::string path; std::vector<const msl_kernel*> ks; std::vector<FCSeen> fcs; CovMod* cov = nullptr; };
struct msl_findings { std::vector<Report> reps; };
static std::vector<msl_library*> g_libs; static std::string g_open_error; static std::mutex g_open_mu, g_run_mu;
static std::string private_copy(const std::string& path) {
  static int n = 0; std::string to = path + "." + std::to_string(getpid()) + "." + std::to_string(n++);
  FILE* a = fopen(path.c_str(), "rb"); if (!a) return "";
  FILE* b = fopen(to.c_str(), "wb"); if (!b) { fclose(a); return ""; }
  char buf[65536]; size_t k; while ((k = fread(buf, 1, sizeof buf, a)) > 0) fwrite(buf, 1, k, b);
  fclose(a); fclose(b); return to;
}
extern "C" {
int msl_abi() { return 1; }
msl_library* msl_open(const char* path, int nfc, const msl_constant* c) {
  std::lock_guard<std::mutex> lock(g_open_mu);
  static bool global = [] { Dl_info di; return dladdr((void*)&msl_abi, &di) && dlopen(di.dli_fname, RTLD_NOW | RTLD_GLOBAL | RTLD_NOLOAD); }();
  (void)global;
  msl_library* l = new msl_library; l->path = path; g_fc_idx.clear(); g_fc_name.clear();
  for (int i = 0; i < nfc; i++) { FC f{c[i].integer, c[i].real}; if (c[i].name) g_fc_name[c[i].name] = f; else g_fc_idx[c[i].index] = f; }
  std::string copy = private_copy(path); size_t cov0 = g_cov.size();
  g_reg = &l->ks; g_fc_seen = &l->fcs;
  l->h = copy.empty() ? nullptr : dlopen(copy.c_str(), RTLD_NOW | RTLD_LOCAL);
  g_reg = nullptr; g_fc_seen = nullptr;
  if (!l->h) { const char* why = copy.empty() ? nullptr : dlerror(); g_open_error = why ? why : std::string("cannot read ") + path; if (!copy.empty()) unlink(copy.c_str()); delete l; return nullptr; }
  unlink(copy.c_str());
  for (auto& f : l->fcs) g_fc_addr[f.addr] = f.defined;
  if (g_cov.size() > cov0) l->cov = g_cov.back();
  g_libs.push_back(l);
  return l;
}
const char* msl_open_error() { return g_open_error.c_str(); }
int msl_kernel_count(const msl_library* l) { return l->ks.size(); }
const msl_kernel* msl_kernel_at(const msl_library* l, int i) { return l->ks[i]; }
int msl_constant_count(const msl_library* l) { return l->fcs.size(); }
msl_declared_constant msl_constant_at(const msl_library* l, int i) { auto& f = l->fcs[i]; return {f.idx, f.name.c_str(), f.defined}; }
int msl_library_count() { return g_libs.size(); }
const msl_library* msl_library_at(int i) { return g_libs[i]; }
const char* msl_library_path(const msl_library* l) { return l->path.c_str(); }
int msl_coverage_count(const msl_library* l) { return l->cov ? (int)l->cov->npcs : 0; }
int msl_coverage_at(const msl_library* l, int i, uint64_t* off) { Dl_info di; uintptr_t pc = l->cov->pcs[2 * i]; *off = dladdr((void*)pc, &di) ? pc - (uint64_t)di.dli_fbase : 0; return l->cov->hit[i]; }
int msl_finding_count(const msl_findings* f) { return f ? f->reps.size() : 0; }
msl_finding msl_finding_at(const msl_findings* f, int i) {
  auto& r = f->reps[i]; msl_finding o{r.kind.c_str(), r.text.c_str(), 0, 0}; Dl_info di, me; dladdr((void*)&msl_abi, &me);
  if (r.pc1 && dladdr((void*)r.pc1, &di) && di.dli_fbase != me.dli_fbase) o.offset = r.pc1 - (uint64_t)di.dli_fbase;
  if (r.pc2 && dladdr((void*)r.pc2, &di) && di.dli_fbase != me.dli_fbase) o.other_offset = r.pc2 - (uint64_t)di.dli_fbase;
  return o;
}
void msl_free_findings(msl_findings* f) { delete f; }

void msl_dispatch(msl_launch* L) {
  std::lock_guard<std::mutex> lock(g_run_mu);
  Dispatch d; D = &d; d.L = L; L->failed = 0; L->findings = nullptr;
  double t0 = now();
  memset(d.bufs, 0, sizeof d.bufs);
  for (uint32_t i = 0; i < MAXBUF; i++) {
    d.bufptrs[i] = nullptr; if (!L->buffer_data[i]) continue;
    // [guard 1 MiB][slack .. data][guard 1 MiB]; the data ends flush (16-byte granularity) with the upper guard
    Buf& b = d.bufs[i]; b.size = L->buffer_bytes[i]; b.flags = L->buffer_flags[i];
    size_t begin = b.flags / MSL_BEGIN & 15; b.flags &= MSL_BEGIN - 1;
    size_t body = (b.size + begin + PAGE - 1) / PAGE * PAGE; if (!body) body = PAGE; size_t guard = 1 << 20;
    char* m = (char*)mmap(nullptr, body + 2 * guard, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    mprotect(m + guard, body, PROT_READ | PROT_WRITE);
    size_t pad = ((body - b.size - begin) & ~15ull) + begin;
    b.map = m; b.maplen = body + 2 * guard; b.base = m + guard + pad;
    if (b.flags & F_FRESH) memset(b.base, 0xff, b.size); else memcpy(b.base, L->buffer_data[i], b.size);
    memset(m + guard, 0xff, pad); memset(b.base + b.size, 0xff, body - pad - b.size);
    if (b.flags & F_READONLY) mprotect(m + guard, body, PROT_READ);
    else if (L->check) b.shadow = (Cell*)mmap(nullptr, sizeof(Cell) * (b.size + 16), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    d.bufptrs[i] = b.base;
  }
  L->copy_s = now() - t0;
  d.total = 1; for (int i = 0; i < 3; i++) { d.ntg[i] = L->grid_is_threads ? (L->grid[i] + L->threadgroup[i] - 1) / L->threadgroup[i] : L->grid[i]; d.total *= d.ntg[i]; }
  if (L->order) { d.order.resize(d.total); for (uint32_t i = 0; i < d.total; i++) d.order[i] = L->order == 1 ? d.total - 1 - i : i; if (L->order == 2) std::shuffle(d.order.begin(), d.order.end(), std::mt19937(L->seed)); }
  struct sigaction sa{}, o1, o2, o3, o4, o5; sa.sa_sigaction = on_fault; sa.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
  sigaction(SIGSEGV, &sa, &o1); sigaction(SIGBUS, &sa, &o2); sigaction(SIGFPE, &sa, &o3); sigaction(SIGUSR1, &sa, &o4); sigaction(SIGILL, &sa, &o5);
  int nw = L->check ? 1 : std::max(1, std::min(L->workers, 64)); nw = std::min<uint32_t>(nw, std::max(1u, d.total));
  double t1 = now();
  pthread_t th[64];
  for (int i = 0; i < nw; i++) pthread_create(&th[i], nullptr, worker, &g_groups[i]);
  for (int i = 0; i < nw; i++) {
    for (;;) {
      timespec ts; clock_gettime(CLOCK_REALTIME, &ts); ts.tv_nsec += 50000000; if (ts.tv_nsec >= 1000000000) { ts.tv_nsec -= 1000000000; ts.tv_sec++; }
      if (!pthread_timedjoin_np(th[i], nullptr, &ts)) break;
      if (L->timeout_s > 0 && now() - t1 > L->timeout_s) { for (int j = i; j < nw; j++) pthread_kill(th[j], SIGUSR1); }
    }
  }
  L->run_s = now() - t1;
  sigaction(SIGSEGV, &o1, nullptr); sigaction(SIGBUS, &o2, nullptr); sigaction(SIGFPE, &o3, nullptr); sigaction(SIGUSR1, &o4, nullptr); sigaction(SIGILL, &o5, nullptr);
  t0 = now();
  for (uint32_t i = 0; i < MAXBUF; i++) { Buf& b = d.bufs[i]; if (!b.map) continue;
    if (!(b.flags & F_READONLY)) {
      memcpy(L->buffer_data[i], b.base, b.size);
      for (char* p = b.base + b.size; p < b.map + b.maplen - (1 << 20); p++) if ((unsigned char)*p != 0xff) { report("bounds", "write past the end of buffer " + std::to_string(i) + " (within its last 16 bytes)"); break; }
    }
    if (b.shadow) munmap(b.shadow, sizeof(Cell) * (b.size + 16));
    munmap(b.map, b.maplen); }
  L->copy_s += now() - t0;
  L->failed = d.stop; L->findings = new msl_findings{d.reps}; D = nullptr;
}
}
