/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * test.h - the tests' small frame: sentences, expectations, helpers for exmap
 *
 * Each test is a sentence of the interface's promise. It runs in a process of
 * its own, with a time limit; main.c prints the results as TAP, as the
 * kernel's own selftests do. EXPECT notes a failure and goes on, REQUIRE ends
 * the test.
 */
#ifndef EXMAP_TEST_H
#define EXMAP_TEST_H

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../exmap/exmap.h"

#define PAGE 4096UL
#define DISK "/dev/vda"		/* holds pattern() in its first DISK_PAGES pages */
#define DISK_PAGES 4096UL
#define BAD_DISK "/dev/nullb0"	/* pages BAD_FIRST to BAD_LAST cannot be read */
#define SLOW_DISK "/dev/nullb1"	/* the same, but slow */
#define BAD_FIRST 8UL
#define BAD_LAST 9UL

/* What the module peek has: see peek/peek.c. */
#define PEEK "/proc/exmap-peek"
#define LOCKS "/proc/exmap-locks"
#define RAM "/proc/exmap-ram"

struct test {
	const char *sentence;
	void (*run)(void);
	const char *needs;	/* a file without which it is skipped, or NULL */
};

extern const struct test basic_tests[], setup_tests[], alloc_tests[];
extern const struct test read_tests[];
extern const struct test memory_tests[], stress_tests[], stale_tests[];
extern const struct test count_tests[], uring_tests[], blank_tests[];
extern const struct test mm_tests[], entry_tests[], nested_tests[];

void note_failure(const char *file, int line, const char *format, ...)
	__attribute__((format(printf, 3, 4)));
bool test_failed(void);

#define EXPECT(condition) do { \
	if (!(condition)) \
		note_failure(__FILE__, __LINE__, "%s", #condition); \
} while (0)

#define REQUIRE(condition) do { \
	if (!(condition)) { \
		note_failure(__FILE__, __LINE__, "%s (errno %d)", #condition, \
			     errno); \
		_exit(1); \
	} \
} while (0)

#define EXPECT_EQ(left, right) do { \
	long long l_ = (left), r_ = (right); \
	if (l_ != r_) \
		note_failure(__FILE__, __LINE__, "%s is %lld, not %lld", \
			     #left, l_, r_); \
} while (0)

/* That @call fails, and how. */
#define EXPECT_ERRNO(call, wanted) do { \
	errno = 0; \
	long long got_ = (long long)(call); \
	int errno_ = errno; \
	if (got_ != -1 || errno_ != (wanted)) \
		note_failure(__FILE__, __LINE__, \
			     "%s gives %lld, errno %d, not errno %d", #call, \
			     got_, errno_, wanted); \
} while (0)

/* An area and what belongs to it, as most tests need it. */
struct map {
	int fd;
	char *base;
	unsigned long pages;
	int nr_ifaces;
	struct exmap_user_interface *iface[EXMAP_MAX_INTERFACES];
};

int exmap_open(void);
int exmap_setup(int fd, int backing, int ifaces, unsigned long pool);
void map_create(struct map *m, int backing, int ifaces, unsigned long pool,
		unsigned long pages);
/* The same with a choice of EXMAP_FAULTS_... */
void map_create_with(struct map *m, unsigned int faults, int backing,
		     int ifaces, unsigned long pool, unsigned long pages);
int set_faults(int fd, unsigned int faults);
void map_destroy(struct map *m);

/* One range through the page of interface @i; the result, and pages moved. */
int one(struct map *m, int i, int op, unsigned long first, unsigned long len,
	int *pages);
/* @nr single pages, @first + n * @step; pages moved, or -1. */
int many(struct map *m, int i, int op, unsigned long first,
	 unsigned long step, int nr);
/* One range through BATCH; its error (0 or a negative errno), pages in @done. */
int batch_one(struct map *m, int i, int op, unsigned long first,
	      unsigned long count, unsigned long *done);
struct exmap_counters counters(struct map *m);
/* Pages that can be allocated one after another from @i, then freed again. */
long drain(struct map *m, int i, unsigned long first);

/* Whether the kernel can read the byte: no fault handler involved. */
bool mapped(const void *address);
unsigned long count_mapped(struct map *m, unsigned long first,
			   unsigned long nr);
/* Whether a load by this thread raises SIGSEGV. */
bool load_faults(const volatile char *address);
/* The same of a store, of 1. */
bool store_faults(volatile char *address);
/* Asks that children have the area, which newer kernels refuse. */
void allow_fork(struct map *m);
/* Until another thread has counted @nr more of its looks at a page. */
void wait_for_looks(const volatile uint64_t *looks, uint64_t nr);

/* Seconds, of a clock that only goes forward. */
double now(void);
void pin_to_cpu(int cpu);
/* Fills and checks a page with words that depend on where and when. */
void stamp(void *page, uint64_t seed);
bool stamped(const void *page, uint64_t seed);
/* What page @n of DISK holds is stamp(n ^ DISK_SEED). */
#define DISK_SEED 0x6469736b00000000ULL
int open_disk(void);

/* Exit status of a child that ran @body(@data); -1 if it was killed. */
int in_child(void (*body)(void *data), void *data);
/*
 * Runs @body in a child, which writes a byte to @ready before a call that takes
 * minutes, and expects that SIGKILL ends it soon.
 */
void expect_killed(void (*body)(int ready), unsigned int delay_ms);
unsigned long free_kib(void);
/* Memory that may seem lost: more where freed objects are held back. */
unsigned long slack_kib(void);
uint64_t random_u64(uint64_t *state);

#endif
