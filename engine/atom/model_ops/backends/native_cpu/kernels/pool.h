/* Loops whose pieces the calling thread and helpers take one by one. See pool.c. */
#pragma once

/* Pieces first .. end of a loop. */
typedef void (*Part)(const void *context, long first, long end);

/* part(context, ...) for all of 0 .. count, at least `grain` at a time, by at most `threads` threads;
 * returns when all is done. Pieces run in any order. grain: so many that taking one costs nothing. */
void share(Part part, const void *context, long count, long grain, int threads);
