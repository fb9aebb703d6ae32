/* SPDX-License-Identifier: GPL-2.0-only */
/* uffd.h - memory that userfaultfd holds back, so that a call waits for it */
#ifndef EXMAP_UFFD_H
#define EXMAP_UFFD_H

#include <linux/userfaultfd.h>
#include <sys/syscall.h>

#include "test.h"

#define UFFD_SYSCTL "/proc/sys/vm/unprivileged_userfaultfd"

#ifndef UFFD_FEATURE_WP_UNPOPULATED
#define UFFD_FEATURE_WP_UNPOPULATED 0x2000
#endif
#ifndef UFFD_FEATURE_WP_ASYNC
#define UFFD_FEATURE_WP_ASYNC 0x8000
#endif

/* A userfaultfd with the features, or -1 if there are none such. */
static inline int uffd_open(uint64_t features)
{
	struct uffdio_api api = { .api = UFFD_API, .features = features };
	int fd = syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK);

	REQUIRE(fd >= 0);
	if (!ioctl(fd, UFFDIO_API, &api))
		return fd;
	close(fd);
	return -1;
}

static inline int uffd_register(int fd, void *start, size_t length, uint64_t mode)
{
	struct uffdio_register r = {
		.range = { (uintptr_t)start, length }, .mode = mode,
	};

	return ioctl(fd, UFFDIO_REGISTER, &r);
}

#endif
