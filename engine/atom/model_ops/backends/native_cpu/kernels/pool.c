/* One loop at a time, shared with helpers that the caller waits for only while they are at work.
 *
 * A parallel region of OpenMP ends when each of its threads has come by. Where cores are shared one
 * of them often is not running, and at the end of every loop the others wait until it was let run
 * to find that nothing was left. Here the caller takes pieces until there are none and waits only
 * for helpers in the middle of one; a helper that was not running has missed the loop.
 *
 * `rounds` is odd while a loop is open. The caller writes `job` while it is even and no helper
 * is inside. A helper enters, and then looks whether its round is still open; the caller closes the
 * round, and then looks who is inside: one of them sees the other.
 */
#define _GNU_SOURCE
#include "pool.h"

#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define SHARES 4       /* of what is left a thread takes one at a time, of its even part */
#define LOOKS 32       /* at a word between two looks at the clock */
#define SPIN_NS 100000L /* before going to sleep: more than lies between two loops of a step */

typedef struct {
    Part part;
    const void *context;
    long count, grain;
    uint32_t helpers; /* at most so many take part */
} Job;

static Job job;
static int num_helpers; /* started */
static pthread_mutex_t owned = PTHREAD_MUTEX_INITIALIZER; /* by who has a loop open */
static _Alignas(64) _Atomic uint32_t rounds;
static _Alignas(64) _Atomic uint32_t inside;
static _Alignas(64) atomic_long taken;
static _Alignas(64) atomic_int asleep; /* helpers */
static atomic_int waiting;             /* the caller sleeps until no helper is inside */

static inline void relax(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static long clock_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000L + now.tv_nsec;
}

static void sleep_while(_Atomic uint32_t *word, uint32_t value) {
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, value, NULL, NULL, 0);
}

static void wake(_Atomic uint32_t *word, int count) {
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, count, NULL, NULL, 0);
}

/* Whether the word changes from `value` before it is time to sleep. */
static int changes_soon(_Atomic uint32_t *word, uint32_t value) {
    long until = clock_ns() + SPIN_NS;
    do {
        for (int i = 0; i < LOOKS; i++) {
            if (atomic_load_explicit(word, memory_order_acquire) != value) return 1;
            relax();
        }
    } while (clock_ns() < until);
    return 0;
}

/* Large pieces first, which read memory in sequence, and small ones last: short waits. */
static void take_pieces(void) {
    long threads = job.helpers + 1, first = atomic_load_explicit(&taken, memory_order_relaxed);
    while (first < job.count) {
        long size = (job.count - first) / (SHARES * threads);
        long end = first + (size > job.grain ? size : job.grain);
        if (!atomic_compare_exchange_weak_explicit(
                &taken, &first, end, memory_order_relaxed, memory_order_relaxed
            )) continue;
        job.part(job.context, first, end < job.count ? end : job.count);
        first = atomic_load_explicit(&taken, memory_order_relaxed);
    }
}

static void help_in(uint32_t round) {
    uint32_t others = atomic_fetch_add(&inside, 1);
    if (atomic_load(&rounds) == round && others < job.helpers) take_pieces();
    if (atomic_fetch_sub(&inside, 1) == 1 && atomic_load(&waiting)) wake(&inside, 1);
}

static void *help(void *nothing) {
    uint32_t seen = 0;
    for (;;) {
        uint32_t round = atomic_load(&rounds);
        if (round != seen) {
            if (round % 2) help_in(round);
            seen = round;
        } else if (!changes_soon(&rounds, seen)) {
            atomic_fetch_add(&asleep, 1);
            sleep_while(&rounds, seen);
            atomic_fetch_sub(&asleep, 1);
        }
    }
    return nothing;
}

static void wait_for_helpers(void) {
    uint32_t count;
    while ((count = atomic_load(&inside))) {
        if (changes_soon(&inside, count)) continue;
        atomic_store(&waiting, 1);
        if ((count = atomic_load(&inside))) sleep_while(&inside, count);
        atomic_store(&waiting, 0);
    }
}

static void forget_helpers(void) { /* in a child process, which has none */
    pthread_mutex_init(&owned, NULL);
    num_helpers = 0;
    atomic_store(&inside, 0);
    atomic_store(&asleep, 0);
    atomic_store(&waiting, 0);
    atomic_store(&rounds, 0);
}

/* Fewer where the system gives no more. Signals are for the program's own threads. */
static void start_helpers(int count) {
    static int watches_forks;
    if (!watches_forks) watches_forks = !pthread_atfork(NULL, NULL, forget_helpers);
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    for (pthread_t thread; num_helpers < count; num_helpers++) {
        if (pthread_create(&thread, NULL, help, NULL)) break;
        pthread_setname_np(thread, "atom-kernels");
        pthread_detach(thread);
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

void share(Part part, const void *context, long count, long grain, int threads) {
    if (threads < 2 || count <= grain || pthread_mutex_trylock(&owned)) {
        part(context, 0, count);
        return;
    }
    if (num_helpers < threads - 1) start_helpers(threads - 1);
    job = (Job){part, context, count, grain, (uint32_t)threads - 1};
    atomic_store(&taken, 0);
    atomic_fetch_add(&rounds, 1);
    if (atomic_load(&asleep)) wake(&rounds, INT_MAX);
    take_pieces();
    atomic_fetch_add(&rounds, 1);
    wait_for_helpers();
    pthread_mutex_unlock(&owned);
}
