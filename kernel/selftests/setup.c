// SPDX-License-Identifier: GPL-2.0-only
/* setup.c - SETUP, mmap, CLONE and the queries: what they accept and refuse */
#include <sys/klog.h>
#include <sys/resource.h>

#include "test.h"

static void numbers(void)
{
	EXPECT_EQ(EXMAP_IOCTL_SETUP, 0x40186b01);
	EXPECT_EQ(EXMAP_IOCTL_ACTION, 0x40106b02);
	EXPECT_EQ(EXMAP_IOCTL_CLONE, 0x40046b03);
	EXPECT_EQ(EXMAP_IOCTL_STATS, 0x40206b04);
	EXPECT_EQ(sizeof(struct exmap_user_interface), 4096);
	struct exmap_iov iov = { .value = 0 };

	iov.page = 5;
	iov.len = 3;
	EXPECT_EQ(iov.value, (3LL << 52) | 5);
}

static void before_setup(void)
{
	struct exmap_action_params params = { .opcode = EXMAP_OP_ALLOC };
	struct exmap_batch batch = { .opcode = EXMAP_OP_ALLOC };
	struct exmap_ioctl_stats stats;
	struct exmap_counters count;
	int fd = exmap_open();
	char *base = mmap(NULL, 16 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED,
			  fd, 0);

	REQUIRE(base != MAP_FAILED);
	EXPECT_ERRNO(ioctl(fd, EXMAP_IOCTL_ACTION, &params), EBADF);
	EXPECT_ERRNO(ioctl(fd, EXMAP_IOCTL_BATCH, &batch), EBADF);
	EXPECT_ERRNO(ioctl(fd, EXMAP_IOCTL_STATS, &stats), EBADF);
	EXPECT_ERRNO(ioctl(fd, EXMAP_IOCTL_COUNTERS, &count), EBADF);
	EXPECT_ERRNO(pread(fd, base, PAGE, EXMAP_OP_ALLOC << 8), EBADF);
	EXPECT(load_faults(base));
}

static void second_setup(void)
{
	int fd = exmap_open();

	EXPECT_EQ(exmap_setup(fd, -1, 1, 16), 0);
	EXPECT_ERRNO(exmap_setup(fd, -1, 1, 16), EBUSY);
}

static void bad_setup(void)
{
	int fd = exmap_open(), other = exmap_open(), ends[2];
	int sink = open("/dev/null", O_WRONLY);

	REQUIRE(pipe(ends) == 0 && sink >= 0);
	EXPECT_ERRNO(exmap_setup(fd, -1, 0, 16), EINVAL);
	EXPECT_ERRNO(exmap_setup(fd, -1, -1, 16), EINVAL);
	EXPECT_ERRNO(exmap_setup(fd, -1, 257, 16), EINVAL);
	EXPECT_ERRNO(exmap_setup(fd, -1, 1, 0), EINVAL);
	EXPECT_ERRNO(exmap_setup(fd, -1, 1, 1UL << 50), ENOMEM);
	EXPECT_ERRNO(exmap_setup(fd, -1, 1, ~0UL), ENOMEM);
	EXPECT_ERRNO(exmap_setup(fd, 999, 1, 16), EBADF);
	EXPECT_ERRNO(exmap_setup(fd, sink, 1, 16), EBADF);
	EXPECT_ERRNO(exmap_setup(fd, ends[0], 1, 16), EINVAL);
	EXPECT_ERRNO(exmap_setup(fd, other, 1, 16), EINVAL);
	EXPECT_ERRNO(exmap_setup(fd, fd, 1, 16), EINVAL);
	EXPECT_ERRNO(ioctl(fd, EXMAP_IOCTL_SETUP, 8), EFAULT);
	EXPECT_ERRNO(ioctl(fd, 0x40046b7f, 0), EINVAL);
	/* None of that stands in the way. */
	EXPECT_EQ(exmap_setup(fd, -1, 256, 16), 0);
	/* As in the published module any negative number is no file. */
	EXPECT_EQ(exmap_setup(other, -2, 1, 16), 0);
}

/* How many warnings are among the kernel's messages. */
static int count_warnings(void)
{
	const int size = klogctl(10 /* SIZE_BUFFER */, NULL, 0);
	char *text = malloc(size + 1);
	int length, nr = 0;

	REQUIRE(text);
	length = klogctl(3 /* READ_ALL */, text, size);
	REQUIRE(length >= 0);
	text[length] = 0;
	for (char *at = text; (at = strstr(at, "WARNING:")); at++)
		nr++;
	free(text);
	return nr;
}

/* Its array of pages would be larger than the kernel gives at once. */
static void too_large(void)
{
	int fd = exmap_open(), ram = open(RAM, O_RDONLY);
	int before = count_warnings();

	REQUIRE(ram >= 0);
	EXPECT_ERRNO(exmap_setup(fd, -1, 1, 1UL << 28), ENOMEM);
	close(ram);
	EXPECT_EQ(count_warnings(), before);
	EXPECT_EQ(exmap_setup(fd, -1, 1, 16), 0);
}

static void before_mmap(void)
{
	struct exmap_action_params params = { .opcode = EXMAP_OP_ALLOC };
	struct exmap_user_interface *page;
	int fd = exmap_open();

	REQUIRE(exmap_setup(fd, -1, 1, 16) == 0);
	page = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd,
		    EXMAP_OFF_INTERFACE(0));
	REQUIRE(page != MAP_FAILED);
	page->iov[0].page = 0;
	page->iov[0].len = 1;
	params.iov_len = 1;
	for (int op = EXMAP_OP_READ; op <= EXMAP_OP_FREE; op++) {
		params.opcode = op;
		EXPECT_ERRNO(ioctl(fd, EXMAP_IOCTL_ACTION, &params), EINVAL);
		EXPECT_ERRNO(pread(fd, page, PAGE, op << 8), EINVAL);
	}
}

static void bad_requests(void)
{
	struct exmap_action_params params = { .opcode = EXMAP_OP_ALLOC };
	struct map m;

	map_create(&m, -1, 2, 16, 64);
	params.interface = 2;
	EXPECT_ERRNO(ioctl(m.fd, EXMAP_IOCTL_ACTION, &params), EINVAL);
	params.interface = 65535;
	EXPECT_ERRNO(ioctl(m.fd, EXMAP_IOCTL_ACTION, &params), EINVAL);
	params.interface = 0;
	params.iov_len = 513;
	EXPECT_ERRNO(ioctl(m.fd, EXMAP_IOCTL_ACTION, &params), EINVAL);
	params.iov_len = 0;
	EXPECT_EQ(ioctl(m.fd, EXMAP_IOCTL_ACTION, &params), 0);
	for (int op = EXMAP_OP_WRITE; op < 70000; op = op * 3 + 1) {
		params.opcode = op;
		params.iov_len = 1;
		if (params.opcode > EXMAP_OP_FREE)
			EXPECT_ERRNO(ioctl(m.fd, EXMAP_IOCTL_ACTION, &params),
				     EINVAL);
	}
	EXPECT_ERRNO(ioctl(m.fd, EXMAP_IOCTL_ACTION, 8), EFAULT);

	/* pread: interface, opcode, alignment, place. */
	EXPECT_ERRNO(pread(m.fd, m.base, PAGE, 2 | EXMAP_OP_ALLOC << 8), EINVAL);
	EXPECT_ERRNO(pread(m.fd, m.base, PAGE, EXMAP_OP_WRITE << 8), EINVAL);
	EXPECT_ERRNO(pread(m.fd, m.base, PAGE, 1LL << 40), EINVAL);
	EXPECT_ERRNO(pread(m.fd, m.base + 1, PAGE, EXMAP_OP_ALLOC << 8), EINVAL);
	EXPECT_ERRNO(pread(m.fd, m.base, 100, EXMAP_OP_ALLOC << 8), EINVAL);
	EXPECT_ERRNO(pread(m.fd, m.base - PAGE, PAGE, EXMAP_OP_ALLOC << 8),
		     EINVAL);
	EXPECT_ERRNO(pread(m.fd, m.base + 64 * PAGE, PAGE, EXMAP_OP_ALLOC << 8),
		     EINVAL);
	EXPECT_EQ(count_mapped(&m, 0, 64), 0);
	EXPECT_EQ(counters(&m).pages_free, 16);
}

static void *map_iface(int fd, int n, size_t length)
{
	return mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_SHARED, fd,
		    EXMAP_OFF_INTERFACE(n));
}

static void bad_interface_page(void)
{
	int fd = exmap_open();

	EXPECT_ERRNO(map_iface(fd, 0, PAGE), ENXIO);
	REQUIRE(exmap_setup(fd, -1, 3, 16) == 0);
	EXPECT(map_iface(fd, 2, PAGE) != MAP_FAILED);
	EXPECT_ERRNO(map_iface(fd, 3, PAGE), ENXIO);
	EXPECT_ERRNO(map_iface(fd, 65536, PAGE), ENXIO);
	EXPECT_ERRNO(map_iface(fd, 0, 2 * PAGE), EINVAL);
	EXPECT_ERRNO(mmap(NULL, PAGE, PROT_READ, MAP_SHARED, fd, PAGE), EINVAL);
}

static void *map_area(int fd, int prot, int flags)
{
	return mmap(NULL, 64 * PAGE, prot, flags, fd, 0);
}

static void area_mappings(void)
{
	int fd = exmap_open();

	EXPECT_ERRNO(map_area(fd, PROT_READ | PROT_WRITE, MAP_PRIVATE), EINVAL);
	EXPECT_ERRNO(map_area(fd, PROT_READ, MAP_SHARED), EINVAL);
	EXPECT_ERRNO(map_area(fd, PROT_READ | PROT_WRITE | PROT_EXEC,
			      MAP_SHARED), EINVAL);
	EXPECT(map_area(fd, PROT_READ | PROT_WRITE, MAP_SHARED) != MAP_FAILED);
	EXPECT_ERRNO(map_area(fd, PROT_READ | PROT_WRITE, MAP_SHARED), EBUSY);
}

static void either_order(void)
{
	for (int order = 0; order < 2; order++) {
		struct map m = { .fd = exmap_open(), .pages = 64 };

		REQUIRE(order || exmap_setup(m.fd, -1, 1, 16) == 0);
		if (!order)
			m.iface[0] = map_iface(m.fd, 0, PAGE);
		m.base = map_area(m.fd, PROT_READ | PROT_WRITE, MAP_SHARED);
		REQUIRE(!order || exmap_setup(m.fd, -1, 1, 16) == 0);
		if (order)
			m.iface[0] = map_iface(m.fd, 0, PAGE);
		REQUIRE(m.base != MAP_FAILED && m.iface[0] != MAP_FAILED);
		EXPECT_EQ(many(&m, 0, EXMAP_OP_ALLOC, 0, 1, 16), 16);
		memset(m.base, 1, 16 * PAGE);
	}
}

static unsigned long locked_kib(void)
{
	char line[128];
	unsigned long kib = ~0UL;
	FILE *file = fopen("/proc/self/status", "r");

	REQUIRE(file);
	while (fgets(line, sizeof(line), file))
		sscanf(line, "VmLck: %lu kB", &kib);
	fclose(file);
	return kib;
}

static void locked_memory(void)
{
	struct rlimit limit = { 400 * 1024, 400 * 1024 };
	int fd = exmap_open(), fd2 = exmap_open();

	EXPECT_EQ(locked_kib(), 0);
	REQUIRE(setrlimit(RLIMIT_MEMLOCK, &limit) == 0);
	/* With CAP_IPC_LOCK there is no limit, but the charge is made. */
	EXPECT_EQ(exmap_setup(fd, -1, 1, 1000), 0);
	EXPECT_EQ(locked_kib(), 4000);
	close(fd);
	EXPECT_EQ(locked_kib(), 0);

	REQUIRE(setresuid(65534, 65534, 65534) == 0);
	EXPECT_ERRNO(exmap_setup(fd2, -1, 1, 101), ENOMEM);
	EXPECT_EQ(locked_kib(), 0);
	EXPECT_EQ(exmap_setup(fd2, -1, 1, 100), 0);
	EXPECT_EQ(locked_kib(), 400);
	fd = exmap_open();
	EXPECT_ERRNO(exmap_setup(fd, -1, 1, 1), ENOMEM);
	close(fd2);
	EXPECT_EQ(exmap_setup(fd, -1, 1, 1), 0);
}

static void queries(void)
{
	struct exmap_ioctl_stats stats;
	struct exmap_version version;
	struct map m;

	map_create(&m, -1, 3, 100, 200);
	EXPECT_EQ(many(&m, 1, EXMAP_OP_ALLOC, 0, 1, 7), 7);
	REQUIRE(ioctl(m.fd, EXMAP_IOCTL_STATS, &stats) == 0);
	EXPECT_EQ(stats.flags, 1);
	EXPECT_EQ(stats.buffer_size, 100);
	EXPECT_EQ(stats.max_interfaces, 3);
	EXPECT_EQ(stats.alloc_count, 7);
	REQUIRE(ioctl(m.fd, EXMAP_IOCTL_VERSION, &version) == 0);
	EXPECT_EQ(version.abi, EXMAP_ABI_VERSION);
	EXPECT_EQ(version.page_size, 4096);
	EXPECT(version.max_ranges >= 512);
	EXPECT_EQ(counters(&m).allocated, 7);
	EXPECT_EQ(counters(&m).pages_free, 93);
}

static void cloned(void)
{
	struct map m, second;
	int null = open("/dev/null", O_RDONLY), busy = exmap_open();

	map_create(&m, -1, 2, 32, 64);
	second = m;
	second.fd = exmap_open();
	EXPECT_ERRNO(ioctl(second.fd, EXMAP_IOCTL_CLONE, 999), EBADF);
	EXPECT_ERRNO(ioctl(second.fd, EXMAP_IOCTL_CLONE, null), EINVAL);
	EXPECT_ERRNO(ioctl(second.fd, EXMAP_IOCTL_CLONE, second.fd), EBUSY);
	REQUIRE(exmap_setup(busy, -1, 1, 1) == 0);
	EXPECT_ERRNO(ioctl(busy, EXMAP_IOCTL_CLONE, m.fd), EBUSY);

	EXPECT_EQ(ioctl(second.fd, EXMAP_IOCTL_CLONE, m.fd), 0);
	EXPECT_ERRNO(ioctl(second.fd, EXMAP_IOCTL_CLONE, m.fd), EBUSY);
	EXPECT_ERRNO(exmap_setup(second.fd, -1, 1, 1), EBUSY);
	EXPECT_EQ(many(&second, 1, EXMAP_OP_ALLOC, 8, 1, 8), 8);
	EXPECT_EQ(count_mapped(&m, 0, 64), 8);
	/* The area outlives the file that it was made with. */
	close(m.fd);
	EXPECT_EQ(many(&second, 0, EXMAP_OP_FREE, 8, 1, 8), 8);
	EXPECT_EQ(drain(&second, 0, 0), 32);
}

const struct test setup_tests[] = {
	{ "numbers and layouts are the published ones", numbers, NULL },
	{ "before SETUP every call is refused with EBADF", before_setup, NULL },
	{ "a second SETUP is refused with EBUSY", second_setup, NULL },
	{ "SETUP refuses bad counts, sizes and files, and can be tried again",
	  bad_setup, NULL },
	{ "a pool of 1 TiB is refused, and the kernel warns of nothing",
	  too_large, RAM },
	{ "an action between SETUP and mmap is refused", before_mmap, NULL },
	{ "a bad interface, opcode, length or place is refused with EINVAL",
	  bad_requests, NULL },
	{ "the page of an interface beyond the maximum is refused with ENXIO",
	  bad_interface_page, NULL },
	{ "the area is mapped once, shared, readable, writable, not executable",
	  area_mappings, NULL },
	{ "area and interfaces may be mapped in either order", either_order,
	  NULL },
	{ "the pool is charged to the locked-memory limit of its owner",
	  locked_memory, NULL },
	{ "STATS, VERSION and COUNTERS tell what is so", queries, NULL },
	{ "CLONE makes another name of an area, which then outlives the first",
	  cloned, NULL },
	{ NULL, NULL, NULL },
};
