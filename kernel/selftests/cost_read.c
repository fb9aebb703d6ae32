// SPDX-License-Identifier: GPL-2.0-only
/*
 * cost_read.c - instructions for reading a page: what registered buffers spare
 *
 *   exmap-cost-read DISK
 *
 * As cost.c, to be run where the time stamp counts instructions. Direct reads
 * of single scattered pages, 64 in a call of io_uring, into pages of an area:
 * by IORING_OP_READ, and by IORING_OP_READ_FIXED into the same pages,
 * registered. A pool that evicts gives an address another page each time, so it
 * would have to register that anew: the third figure. The last is for all that
 * a miss takes in one ACTION, the page's allocation included.
 */
#include <stdarg.h>
#include <x86intrin.h>

#include "ring.h"
#include "test.h"

#define BATCH 64
#define ROUNDS 64
#define DISK_FIRST 16UL		/* those before may be bad */
#define STEP 7UL

static struct ring ring;
static struct map m;
static int disk;
static uint64_t unit;		/* thousandths of a tick for two instructions */

void note_failure(const char *file, int line, const char *format, ...)
{
	va_list args;

	printf("not ok - %s:%d: ", file, line);
	va_start(args, format);
	vprintf(format, args);
	va_end(args);
	printf("\n");
}

bool test_failed(void)
{
	return true;
}

static unsigned long disk_page(int i)
{
	return DISK_FIRST + i * STEP;
}

static void read_batch(int opcode)
{
	int results[BATCH];

	for (int i = 0; i < BATCH; i++) {
		struct io_uring_sqe *sqe = ring_entry(&ring);

		sqe->opcode = opcode;
		sqe->fd = disk;
		sqe->off = disk_page(i) * PAGE;
		sqe->addr = (uintptr_t)m.base + disk_page(i) * PAGE;
		sqe->len = PAGE;
		sqe->user_data = i;
		if (opcode == IORING_OP_READ_FIXED)
			sqe->buf_index = i;
	}
	ring_finish(&ring, BATCH, results);
	for (int i = 0; i < BATCH; i++)
		REQUIRE(results[i] == (int)PAGE);
}

static void plain(void)
{
	read_batch(IORING_OP_READ);
}

static void fixed(void)
{
	read_batch(IORING_OP_READ_FIXED);
}

static void nothing(void)
{
	int results[BATCH];

	for (int i = 0; i < BATCH; i++) {
		struct io_uring_sqe *sqe = ring_entry(&ring);

		sqe->opcode = IORING_OP_NOP;
		sqe->user_data = i;
	}
	ring_finish(&ring, BATCH, results);
}

/* Each page is registered in its own place anew, all by one call. */
static void registered_anew(void)
{
	struct iovec iov[BATCH];
	struct io_uring_rsrc_update2 update = {
		.data = (uintptr_t)iov, .nr = BATCH,
	};

	for (int i = 0; i < BATCH; i++)
		iov[i] = (struct iovec) {
			m.base + disk_page(i) * PAGE, PAGE,
		};
	REQUIRE(ring_register(&ring, IORING_REGISTER_BUFFERS_UPDATE, &update,
			      sizeof(update)) == BATCH);
}

static void missed(void)
{
	struct exmap_iov *iov = m.iface[0]->iov;
	struct exmap_action_params params = { .iov_len = BATCH };

	for (int i = 0; i < BATCH; i++)
		iov[i].value = 1ULL << 52 | disk_page(i);
	params.opcode = EXMAP_OP_FREE;
	REQUIRE(ioctl(m.fd, EXMAP_IOCTL_ACTION, &params) == 0);
	for (int i = 0; i < BATCH; i++)
		iov[i].value = 1ULL << 52 | disk_page(i);
	params.opcode = EXMAP_OP_READ;
	REQUIRE(ioctl(m.fd, EXMAP_IOCTL_ACTION, &params) == 0);
}

/* Prints and returns the instructions for a page. */
static unsigned long measure(const char *what, void (*batch)(void))
{
	uint64_t start;
	unsigned long cost;

	for (int i = 0; i < 4; i++)
		batch();
	start = __rdtsc();
	for (int i = 0; i < ROUNDS; i++)
		batch();
	cost = (__rdtsc() - start) / (ROUNDS * BATCH) * 2000 / unit;
	printf("# %s: %lu instructions a page\n", what, cost);
	return cost;
}

int main(int argc, char **argv)
{
	unsigned long by_read, by_fixed, anew;
	struct iovec iov[BATCH];
	uint64_t start, n = 1000000;

	REQUIRE(argc == 2);
	disk = open(argv[1], O_RDONLY | O_DIRECT);
	REQUIRE(disk >= 0);
	start = __rdtsc();
	__asm__ volatile("1: dec %0; jnz 1b" : "+r"(n));
	unit = (__rdtsc() - start) / 1000;

	ring_create(&ring, BATCH);
	map_create(&m, disk, 1, 4 * BATCH, 4096);
	for (int i = 0; i < BATCH; i++) {
		REQUIRE(one(&m, 0, EXMAP_OP_ALLOC, disk_page(i), 1, NULL) == 0);
		iov[i] = (struct iovec) {
			m.base + disk_page(i) * PAGE, PAGE,
		};
	}
	measure("an entry of io_uring that does nothing", nothing);
	by_read = measure("a direct read", plain);
	if (ring_register(&ring, IORING_REGISTER_BUFFERS, iov, BATCH)) {
		/* Before 6.5 io_uring itself took no file's memory. */
		printf("# pages cannot be registered here: errno %d\n", errno);
	} else {
		by_fixed = measure("into a page that is registered", fixed);
		anew = measure("to register a page anew", registered_anew);
		printf("# registered buffers spare %ld a page that stays, ",
		       (long)(by_read - by_fixed));
		printf("and cost %ld more for one that comes\n",
		       (long)(by_fixed + anew - by_read));
		REQUIRE(ring_register(&ring, IORING_UNREGISTER_BUFFERS, NULL,
				      0) == 0);
	}
	measure("FREE and READ by two ACTIONs", missed);
	printf("ok - reads were counted\n");
	return 0;
}
