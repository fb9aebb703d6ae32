/* SPDX-License-Identifier: GPL-2.0-only WITH Linux-syscall-note */
/*
 * exmap.h - what a program may ask of /dev/exmap
 *
 * Two interfaces to the same thing. The first half is the published exmap
 * (Leis et al., "Virtual-Memory Assisted Buffer Management", SIGMOD 2023),
 * value for value, so that programs written for it run unmodified. The second
 * half is the one to use in new programs: wide fields, explicit padding, and
 * each range told what became of it. README.md describes both at length.
 *
 * Numbers of pages are in units of EXMAP_PAGE_SIZE; a page is named by its
 * index in the area. The header serves the module and programs alike.
 */
#ifndef VELLUM_EXMAP_H
#define VELLUM_EXMAP_H

#include <linux/ioctl.h>
#include <linux/types.h>

#define EXMAP_PAGE_SIZE			4096
#define EXMAP_MAX_INTERFACES		256

/* Opcodes, the same in both interfaces. WRITE is reserved: EINVAL. */
#define EXMAP_OP_READ			0
#define EXMAP_OP_ALLOC			1
#define EXMAP_OP_FREE			2
#define EXMAP_OP_WRITE			3

/* Offsets for mmap(): the area itself, and the page of interface n. */
#define EXMAP_OFF_EXMAP			0x0ULL
#define EXMAP_OFF_INTERFACE_BASE	0xe000000000000000ULL
#define EXMAP_OFF_INTERFACE(n) \
	(EXMAP_OFF_INTERFACE_BASE | ((__u64)(n) << 12))

/* ---- the published interface ---- */

struct exmap_ioctl_setup {
	__s32 fd;		/* file that READ reads from, or -1 */
	__s32 max_interfaces;	/* 1 to EXMAP_MAX_INTERFACES */
	__u64 buffer_size;	/* physical pages in the pool */
	__u64 flags;		/* ignored, as published programs leave it unset */
};

struct exmap_action_params {
	__u16 interface;
	__u16 iov_len;		/* entries used of the interface page */
	__u16 opcode;
	__u16 pad;		/* ignored */
	__u64 flags;		/* ignored */
};

struct exmap_ioctl_stats {
	__u64 flags;		/* bit 0: set up */
	__u64 buffer_size;	/* pages of the pool */
	__u64 alloc_count;	/* pages of the pool that are not free */
	__u32 max_interfaces;
	__u32 pad;
};

#define EXMAP_PAGE_LEN_BITS		12
#define EXMAP_PAGE_MAX_PAGES		4096
#define EXMAP_USER_INTERFACE_PAGES	512

/* One entry of an interface page: a range going in, a result coming out. */
struct exmap_iov {
	union {
		__u64 value;
		struct {
			__u64 page : 64 - EXMAP_PAGE_LEN_BITS;
			__u64 len  : EXMAP_PAGE_LEN_BITS;
		};
		struct {
			__s32 res;	/* 0, or a negative errno */
			__s16 pages;	/* pages that changed hands */
		};
	};
};

struct exmap_user_interface {
	struct exmap_iov iov[EXMAP_USER_INTERFACE_PAGES];
};

#define EXMAP_IOCTL_SETUP	_IOW('k', 1, struct exmap_ioctl_setup)
#define EXMAP_IOCTL_ACTION	_IOW('k', 2, struct exmap_action_params)
#define EXMAP_IOCTL_CLONE	_IOW('k', 3, __s32)	/* the fd by value */
#define EXMAP_IOCTL_STATS	_IOW('k', 4, struct exmap_ioctl_stats)

/* sqe->cmd of an io_uring command whose cmd_op is interface | opcode << 8. */
struct exmap_uring_range {
	__u64 address;
	__u64 length;		/* bytes */
};

/* ---- the second interface ---- */

#define EXMAP_ABI_VERSION		1

/* exmap_version.features */
#define EXMAP_FEATURE_URING		0x1
#define EXMAP_FEATURE_BLANK		0x2 /* EXMAP_FAULTS_BLANK */
#define EXMAP_FEATURE_NO_FLUSH		0x80000000 /* a broken build, for tests */

struct exmap_version {
	__u32 abi;		/* EXMAP_ABI_VERSION */
	__u32 features;
	__u32 page_size;
	__u32 max_ranges;	/* the most that one batch may name */
};

struct exmap_range {
	__u64 first;		/* in: first page */
	__u64 count;		/* in: pages, at least 1 */
	__u64 done;		/* out: pages mapped, released or read */
	__s32 error;		/* out: 0, or a negative errno */
	__u32 pad;		/* in: 0 */
};

struct exmap_batch {
	__u64 ranges;		/* in: address of the array of exmap_range */
	__u32 nr_ranges;	/* in */
	__u32 opcode;		/* in */
	__u32 interface;	/* in */
	__u32 flags;		/* in: 0 */
	__u64 pages_done;	/* out: the sum of the ranges' done */
	__u32 ranges_failed;	/* out: ranges with an error */
	__u32 pad;		/* in: 0 */
};

struct exmap_counters {
	__u64 pages_pool;
	__u64 pages_free;	/* in the lists of all interfaces */
	__u64 pages_parked;	/* released, but something still holds them */
	__u64 allocated;	/* pages ever mapped, READ included */
	__u64 released;		/* pages ever unmapped by FREE or a failed READ */
	__u64 read;		/* pages ever filled from the file */
	__u64 flushes;		/* TLB flushes asked for */
	__u64 stolen_last;	/* pages taken from the last victim */
	__u64 stolen_random;	/* from the better of two at random */
	__u64 stolen_any;	/* from the first that had any */
	__u64 recovered;	/* pages the kernel unmapped, found again */
	__u64 flushes_blank;	/* flushes by ALLOC, where blank pages had been read */
};

/* What a load from a page of the area that is not mapped does. */
#define EXMAP_FAULTS_SIGNAL		0	/* SIGSEGV; the default */
#define EXMAP_FAULTS_BLANK		1	/* reads zeroes */

struct exmap_options {
	__u32 faults;
	__u32 pad[3];		/* 0 */
};

#define EXMAP_IOCTL_VERSION	_IOR('k', 0x10, struct exmap_version)
#define EXMAP_IOCTL_BATCH	_IOWR('k', 0x11, struct exmap_batch)
#define EXMAP_IOCTL_COUNTERS	_IOR('k', 0x12, struct exmap_counters)
#define EXMAP_IOCTL_OPTIONS	_IOW('k', 0x13, struct exmap_options)

#endif /* VELLUM_EXMAP_H */
