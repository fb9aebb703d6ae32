// SPDX-License-Identifier: GPL-2.0-only
/* util.c - what the tests share; test.h says what each does */
#include <setjmp.h>
#include <time.h>

#include "test.h"

double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec / 1e9;
}

int exmap_open(void)
{
	int fd = open("/dev/exmap", O_RDWR | O_CLOEXEC);

	REQUIRE(fd >= 0);
	return fd;
}

int exmap_setup(int fd, int backing, int ifaces, unsigned long pool)
{
	struct exmap_ioctl_setup setup = {
		.fd = backing, .max_interfaces = ifaces, .buffer_size = pool,
		.flags = 0xdeadbeef,	/* ignored: programs leave it unset */
	};

	return ioctl(fd, EXMAP_IOCTL_SETUP, &setup);
}

int set_faults(int fd, unsigned int faults)
{
	struct exmap_options options = { .faults = faults };

	return ioctl(fd, EXMAP_IOCTL_OPTIONS, &options);
}

void map_create(struct map *m, int backing, int ifaces, unsigned long pool,
		unsigned long pages)
{
	map_create_with(m, EXMAP_FAULTS_SIGNAL, backing, ifaces, pool, pages);
}

void map_create_with(struct map *m, unsigned int faults, int backing,
		     int ifaces, unsigned long pool, unsigned long pages)
{
	memset(m, 0, sizeof(*m));
	m->fd = exmap_open();
	m->pages = pages;
	m->nr_ifaces = ifaces;
	/* The default is left alone, as by programs that know no options. */
	if (faults != EXMAP_FAULTS_SIGNAL)
		REQUIRE(set_faults(m->fd, faults) == 0);
	REQUIRE(exmap_setup(m->fd, backing, ifaces, pool) == 0);
	m->base = mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED,
		       m->fd, EXMAP_OFF_EXMAP);
	REQUIRE(m->base != MAP_FAILED);
	for (int i = 0; i < ifaces; i++) {
		m->iface[i] = mmap(NULL, PAGE, PROT_READ | PROT_WRITE,
				   MAP_SHARED, m->fd, EXMAP_OFF_INTERFACE(i));
		REQUIRE(m->iface[i] != MAP_FAILED);
	}
}

void map_destroy(struct map *m)
{
	for (int i = 0; i < m->nr_ifaces; i++)
		EXPECT(munmap(m->iface[i], PAGE) == 0);
	EXPECT(munmap(m->base, m->pages * PAGE) == 0);
	EXPECT(close(m->fd) == 0);
}

static int action(struct map *m, int i, int op, int len)
{
	struct exmap_action_params params = {
		.interface = i, .iov_len = len, .opcode = op,
	};

	return ioctl(m->fd, EXMAP_IOCTL_ACTION, &params);
}

int one(struct map *m, int i, int op, unsigned long first, unsigned long len,
	int *pages)
{
	struct exmap_iov *iov = &m->iface[i]->iov[0];
	int failures;

	iov->page = first;
	iov->len = len;
	failures = action(m, i, op, 1);
	if (failures < 0)
		return -errno;
	EXPECT_EQ(failures, iov->res != 0);
	if (pages)
		*pages = iov->pages;
	return iov->res;
}

int many(struct map *m, int i, int op, unsigned long first,
	 unsigned long step, int nr)
{
	struct exmap_iov *iov = m->iface[i]->iov;
	int sum = 0;

	for (int n = 0; n < nr; n++) {
		iov[n].page = first + n * step;
		iov[n].len = 1;
	}
	if (action(m, i, op, nr) < 0)
		return -1;
	for (int n = 0; n < nr; n++)
		sum += iov[n].pages;
	return sum;
}

int batch_one(struct map *m, int i, int op, unsigned long first,
	      unsigned long count, unsigned long *done)
{
	struct exmap_range range = { .first = first, .count = count };
	struct exmap_batch batch = {
		.ranges = (uintptr_t)&range, .nr_ranges = 1, .opcode = op,
		.interface = i,
	};

	if (ioctl(m->fd, EXMAP_IOCTL_BATCH, &batch))
		return -errno;
	EXPECT_EQ(batch.pages_done, range.done);
	EXPECT_EQ(batch.ranges_failed, range.error != 0);
	if (done)
		*done = range.done;
	return range.error;
}

struct exmap_counters counters(struct map *m)
{
	struct exmap_counters c;

	REQUIRE(ioctl(m->fd, EXMAP_IOCTL_COUNTERS, &c) == 0);
	return c;
}

long drain(struct map *m, int i, unsigned long first)
{
	long nr = 0;
	int pages = 0;

	while (first + nr < m->pages &&
	       one(m, i, EXMAP_OP_ALLOC, first + nr, 1, &pages) == 0)
		nr += pages;
	EXPECT_EQ(batch_one(m, i, EXMAP_OP_FREE, first, nr ? nr : 1, NULL), 0);
	return nr;
}

bool mapped(const void *address)
{
	static int ends[2] = { -1, -1 };
	char byte;

	if (ends[0] < 0)
		REQUIRE(pipe(ends) == 0);
	if (write(ends[1], address, 1) != 1) {
		EXPECT_EQ(errno, EFAULT);
		return false;
	}
	REQUIRE(read(ends[0], &byte, 1) == 1);
	return true;
}

unsigned long count_mapped(struct map *m, unsigned long first,
			   unsigned long nr)
{
	unsigned long sum = 0;

	for (unsigned long p = first; p < first + nr; p++)
		sum += mapped(m->base + p * PAGE);
	return sum;
}

static __thread sigjmp_buf back;

static void jump_back(int signal)
{
	(void)signal;
	siglongjmp(back, 1);
}

static bool access_faults(volatile char *address, bool store)
{
	struct sigaction action = { .sa_handler = jump_back }, old;
	bool faulted = true;

	sigaction(SIGSEGV, &action, &old);
	if (!sigsetjmp(back, 1)) {
		if (store)
			*address = 1;
		else
			(void)*address;
		faulted = false;
	}
	sigaction(SIGSEGV, &old, NULL);
	return faulted;
}

bool load_faults(const volatile char *address)
{
	return access_faults((volatile char *)address, false);
}

bool store_faults(volatile char *address)
{
	return access_faults(address, true);
}

void allow_fork(struct map *m)
{
	if (madvise(m->base, m->pages * PAGE, MADV_DOFORK))
		EXPECT_EQ(errno, EINVAL);
}

void wait_for_looks(const volatile uint64_t *looks, uint64_t nr)
{
	uint64_t from = *looks;

	while (*looks < from + nr)
		sched_yield();
}

void pin_to_cpu(int cpu)
{
	cpu_set_t set;

	CPU_ZERO(&set);
	CPU_SET(cpu, &set);
	REQUIRE(sched_setaffinity(0, sizeof(set), &set) == 0);
}

static uint64_t mix(uint64_t x)
{
	x = (x ^ (x >> 33)) * 0xff51afd7ed558ccdULL;
	x = (x ^ (x >> 33)) * 0xc4ceb9fe1a85ec53ULL;
	return x ^ (x >> 33);
}

/* A word in each cache line, and the seed itself at both ends. */
void stamp(void *page, uint64_t seed)
{
	volatile uint64_t *words = page;

	words[0] = seed;
	words[511] = seed;
	for (int i = 8; i < 504; i += 8)
		words[i] = mix(seed + i);
}

bool stamped(const void *page, uint64_t seed)
{
	const volatile uint64_t *words = page;

	for (int i = 8; i < 504; i += 8) {
		if (words[i] != mix(seed + i))
			return false;
	}
	return words[0] == seed && words[511] == seed;
}

int open_disk(void)
{
	int fd = open(DISK, O_RDWR | O_DIRECT | O_CLOEXEC);
	const unsigned long chunk = 256;
	char *buffer;

	REQUIRE(fd >= 0);
	buffer = aligned_alloc(PAGE, chunk * PAGE);
	REQUIRE(buffer && pread(fd, buffer, PAGE, (DISK_PAGES - 1) * PAGE) == PAGE);
	if (!stamped(buffer, (DISK_PAGES - 1) ^ DISK_SEED)) {
		for (unsigned long p = 0; p < DISK_PAGES; p += chunk) {
			memset(buffer, 0, chunk * PAGE);
			for (unsigned long i = 0; i < chunk; i++)
				stamp(buffer + i * PAGE, (p + i) ^ DISK_SEED);
			REQUIRE(pwrite(fd, buffer, chunk * PAGE, p * PAGE) ==
				(ssize_t)(chunk * PAGE));
		}
	}
	free(buffer);
	return fd;
}

int in_child(void (*body)(void *data), void *data)
{
	int status;
	pid_t pid;

	fflush(stdout);
	pid = fork();
	REQUIRE(pid >= 0);
	if (!pid) {
		body(data);
		fflush(stdout);
		_exit(test_failed() ? 1 : 0);
	}
	REQUIRE(waitpid(pid, &status, 0) == pid);
	return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

void expect_killed(void (*body)(int ready), unsigned int delay_ms)
{
	int ready[2], status;
	double start;
	char byte;
	pid_t pid;

	REQUIRE(pipe(ready) == 0);
	fflush(stdout);
	pid = fork();
	REQUIRE(pid >= 0);
	if (!pid) {
		body(ready[1]);
		_exit(0);
	}
	close(ready[1]);
	REQUIRE(read(ready[0], &byte, 1) == 1);
	usleep(delay_ms * 1000);
	start = now();
	kill(pid, SIGKILL);
	REQUIRE(waitpid(pid, &status, 0) == pid);
	printf("# it ended %.0f ms after SIGKILL\n", (now() - start) * 1e3);
	EXPECT(WIFSIGNALED(status));
	EXPECT(now() - start < 5);
}

/* Free pages, those kept in the lists of each processor included. */
unsigned long free_kib(void)
{
	unsigned long pages = 0, n;
	char line[256];
	FILE *file;

	file = fopen("/proc/sys/vm/drop_caches", "w");
	if (file) {
		fputs("3\n", file);
		fclose(file);
	}
	usleep(200000);
	file = fopen("/proc/zoneinfo", "r");
	REQUIRE(file);
	while (fgets(line, sizeof(line), file)) {
		if (sscanf(line, " pages free %lu", &n) == 1 ||
		    sscanf(line, " count: %lu", &n) == 1)
			pages += n;
	}
	fclose(file);
	return pages * 4;
}

unsigned long slack_kib(void)
{
	const char *slack = getenv("EXMAP_SLACK_KIB");

	return slack ? atoi(slack) : 1024;
}

uint64_t random_u64(uint64_t *state)
{
	*state += 0x9e3779b97f4a7c15ULL;
	return mix(*state);
}
