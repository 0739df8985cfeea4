/* Device memory whose addresses outlive it: torch allocates here (CUDAPluggableAllocator), and what
   lies behind all addresses of a pool can be given back and taken anew, while views, pointers and
   captured graphs stay as they are.

   One pool is one reservation of addresses, handed out upwards. A block is a run of chunks, each of
   physical memory of its own: so large blocks need no large free piece. The driver is opened by
   name, since CUDA and HIP have the same calls with the same structures. */

#include <dlfcn.h>
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#define EXPORT __attribute__((visibility("default")))

typedef unsigned long long address_t;

typedef struct {
  int type;
  int id;
} location_t;

/* CUmemAllocationProp, hipMemAllocationProp. */
typedef struct {
  int type;
  int handle_types;
  location_t location;
  void *windows;
  unsigned char flags[8];
} properties_t;

/* CUmemAccessDesc, hipMemAccessDesc. */
typedef struct {
  location_t location;
  int flags;
} access_t;

enum { PINNED = 1, DEVICE = 1, READ_WRITE = 3, RELAXED = 2 };

static struct {
  int (*granularity)(size_t *, const properties_t *, int);
  int (*reserve)(address_t *, size_t, size_t, address_t, unsigned long long);
  int (*create)(address_t *, size_t, const properties_t *, unsigned long long);
  int (*map)(address_t, size_t, size_t, address_t, unsigned long long);
  int (*set_access)(address_t, size_t, const access_t *, size_t);
  int (*unmap)(address_t, size_t);
  int (*release)(address_t);
  int (*exchange_mode)(int *);
} driver;

typedef struct {
  address_t begin;
  size_t bytes;
  address_t *handles; /* of its chunks; NULL while nothing is behind the addresses */
} block_t;

typedef struct {
  int device;
  size_t granularity, chunk;
  address_t next, end;
  block_t *blocks;
  size_t count, room;
} pool_t;

enum { MOST_POOLS = 64 };
static pool_t pools[MOST_POOLS];
static int num_pools;
static char problem[256];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static int failed(const char *call, int code) {
  snprintf(problem, sizeof problem, "%s ended with code %d", call, code);
  return -1;
}

static properties_t properties_of(const pool_t *pool) {
  properties_t wanted = {.type = PINNED, .location = {DEVICE, pool->device}};
  return wanted;
}

static size_t size_of_chunk(const pool_t *pool, const block_t *block, size_t number) {
  size_t left = block->bytes - number * pool->chunk;
  return left < pool->chunk ? left : pool->chunk;
}

static size_t chunks_of(const pool_t *pool, const block_t *block) {
  return (block->bytes + pool->chunk - 1) / pool->chunk;
}

static int take_away(const pool_t *pool, block_t *block, size_t chunks) {
  int code, first = 0;
  for (size_t i = 0; i < chunks; i++) {
    address_t at = block->begin + i * pool->chunk;
    if ((code = driver.unmap(at, size_of_chunk(pool, block, i))) && !first)
      first = failed("MemUnmap", code);
    if ((code = driver.release(block->handles[i])) && !first) first = failed("MemRelease", code);
  }
  free(block->handles);
  block->handles = NULL;
  return first;
}

/* All of a block, or nothing of it. */
static int put_behind(const pool_t *pool, block_t *block) {
  properties_t wanted = properties_of(pool);
  access_t access = {wanted.location, READ_WRITE};
  size_t chunks = chunks_of(pool, block);
  int code;
  block->handles = calloc(chunks, sizeof *block->handles);
  if (!block->handles) return failed("calloc", 0);
  for (size_t i = 0; i < chunks; i++) {
    size_t bytes = size_of_chunk(pool, block, i);
    if ((code = driver.create(&block->handles[i], bytes, &wanted, 0))) {
      take_away(pool, block, i);
      return failed("MemCreate", code);
    }
    if ((code = driver.map(block->begin + i * pool->chunk, bytes, 0, block->handles[i], 0))) {
      driver.release(block->handles[i]);
      take_away(pool, block, i);
      return failed("MemMap", code);
    }
  }
  if ((code = driver.set_access(block->begin, block->bytes, &access, 1))) {
    take_away(pool, block, chunks);
    return failed("MemSetAccess", code);
  }
  return 0;
}

static int symbol(void *library, const char *prefix, const char *name, void *target) {
  char full[64];
  snprintf(full, sizeof full, "%s%s", prefix, name);
  void *found = dlsym(library, full);
  if (!found) {
    snprintf(problem, sizeof problem, "the driver has no %s", full);
    return -1;
  }
  *(void **)target = found;
  return 0;
}

/* Opens the driver. Returns 0, or -1 with a text in vm_problem. */
EXPORT int vm_open(const char *path, const char *prefix) {
  void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (!library) {
    snprintf(problem, sizeof problem, "%s", dlerror());
    return -1;
  }
  return symbol(library, prefix, "MemGetAllocationGranularity", &driver.granularity) ||
                 symbol(library, prefix, "MemAddressReserve", &driver.reserve) ||
                 symbol(library, prefix, "MemCreate", &driver.create) ||
                 symbol(library, prefix, "MemMap", &driver.map) ||
                 symbol(library, prefix, "MemSetAccess", &driver.set_access) ||
                 symbol(library, prefix, "MemUnmap", &driver.unmap) ||
                 symbol(library, prefix, "MemRelease", &driver.release) ||
                 symbol(library, prefix, "ThreadExchangeStreamCaptureMode", &driver.exchange_mode)
             ? -1
             : 0;
}

/* Reserves addresses on a device for one more pool. Returns its number, or -1. */
EXPORT int vm_pool(int device, size_t bytes, size_t chunk) {
  pool_t made = {.device = device}, *pool = &made;
  properties_t wanted = properties_of(pool);
  int code, number = -1;
  pthread_mutex_lock(&lock);
  if (num_pools == MOST_POOLS) {
    snprintf(problem, sizeof problem, "a process has %d pools at most", MOST_POOLS);
  } else if ((code = driver.granularity(&pool->granularity, &wanted, 0))) {
    failed("MemGetAllocationGranularity", code);
  } else {
    size_t unit = pool->granularity;
    pool->chunk = (chunk + unit - 1) / unit * unit;
    bytes = (bytes + unit - 1) / unit * unit;
    if ((code = driver.reserve(&pool->next, bytes, 0, 0, 0))) {
      failed("MemAddressReserve", code);
    } else {
      pool->end = pool->next + bytes;
      number = num_pools++;
      pools[number] = made;
    }
  }
  pthread_mutex_unlock(&lock);
  return number;
}

/* Memory may be taken while this thread captures a graph: that is no work of the graph's. */
static int put_behind_in_capture(const pool_t *pool, block_t *block) {
  int mode = RELAXED, result, known = !driver.exchange_mode(&mode);
  result = put_behind(pool, block);
  if (known) driver.exchange_mode(&mode);
  return result;
}

static void *allocate(pool_t *pool, ptrdiff_t size) {
  size_t unit = pool->granularity, bytes = ((size_t)size + unit - 1) / unit * unit;
  if (bytes > pool->end - pool->next) {
    snprintf(problem, sizeof problem, "a pool has no addresses left");
    return NULL;
  }
  if (pool->count == pool->room) {
    size_t room = pool->room ? 2 * pool->room : 256;
    block_t *more = realloc(pool->blocks, room * sizeof *more);
    if (!more) return NULL;
    pool->blocks = more;
    pool->room = room;
  }
  block_t *block = &pool->blocks[pool->count];
  *block = (block_t){.begin = pool->next, .bytes = bytes};
  if (put_behind_in_capture(pool, block)) return NULL;
  pool->count++;
  pool->next += bytes;
  return (void *)(uintptr_t)block->begin;
}

/* What torch calls: one function for each pool, since it says no pool. Numbers are octal. */
#define ALLOCATE(number)                                                                 \
  EXPORT void *vm_allocate_##number(ptrdiff_t size, int device, void *stream) {          \
    (void)device, (void)stream;                                                          \
    pthread_mutex_lock(&lock);                                                           \
    void *found = allocate(&pools[0##number], size);                                      \
    pthread_mutex_unlock(&lock);                                                         \
    return found;                                                                        \
  }
#define EIGHT(n)                                                                         \
  ALLOCATE(n##0) ALLOCATE(n##1) ALLOCATE(n##2) ALLOCATE(n##3)                            \
  ALLOCATE(n##4) ALLOCATE(n##5) ALLOCATE(n##6) ALLOCATE(n##7)
EIGHT(0) EIGHT(1) EIGHT(2) EIGHT(3) EIGHT(4) EIGHT(5) EIGHT(6) EIGHT(7)

/* Gives a block's memory back; its addresses are not handed out again. */
EXPORT void vm_free(void *pointer, ptrdiff_t size, int device, void *stream) {
  (void)size, (void)device, (void)stream;
  address_t begin = (address_t)(uintptr_t)pointer;
  pthread_mutex_lock(&lock);
  for (int number = 0; number < num_pools; number++) {
    pool_t *pool = &pools[number];
    for (size_t i = 0; i < pool->count; i++) {
      if (pool->blocks[i].begin != begin) continue;
      if (pool->blocks[i].handles) {
        take_away(pool, &pool->blocks[i], chunks_of(pool, &pool->blocks[i]));
      }
      pool->blocks[i] = pool->blocks[--pool->count];
      pthread_mutex_unlock(&lock);
      return;
    }
  }
  pthread_mutex_unlock(&lock);
}

/* Gives back what is behind a pool's addresses. Returns 0, or -1. */
EXPORT int vm_unmap(int number) {
  pthread_mutex_lock(&lock);
  pool_t *pool = &pools[number];
  int result = 0;
  for (size_t i = 0; i < pool->count; i++) {
    block_t *block = &pool->blocks[i];
    if (block->handles && take_away(pool, block, chunks_of(pool, block))) result = -1;
  }
  pthread_mutex_unlock(&lock);
  return result;
}

/* Puts memory behind a pool's addresses again; after -1, such as too little memory, it may be called
   once more. */
EXPORT int vm_map(int number) {
  pthread_mutex_lock(&lock);
  pool_t *pool = &pools[number];
  int result = 0;
  for (size_t i = 0; !result && i < pool->count; i++) {
    if (!pool->blocks[i].handles) result = put_behind(pool, &pool->blocks[i]);
  }
  pthread_mutex_unlock(&lock);
  return result;
}

/* Bytes of addresses that nothing is behind now. */
EXPORT size_t vm_unmapped_bytes(int number) {
  pthread_mutex_lock(&lock);
  size_t bytes = 0;
  for (size_t i = 0; i < pools[number].count; i++) {
    if (!pools[number].blocks[i].handles) bytes += pools[number].blocks[i].bytes;
  }
  pthread_mutex_unlock(&lock);
  return bytes;
}

EXPORT const char *vm_problem(void) { return problem; }
