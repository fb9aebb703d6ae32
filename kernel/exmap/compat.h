/* SPDX-License-Identifier: GPL-2.0-only */
/* compat.h - what differs between the kernels that the module builds for */
#ifndef EXMAP_COMPAT_H
#define EXMAP_COMPAT_H

#include <linux/mm.h>
#include <linux/percpu_counter.h>
#include <linux/uio.h>
#include <linux/version.h>
#include <linux/io_uring.h>
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 7, 0)
#include <linux/io_uring/cmd.h>
#endif

#if !defined(CONFIG_X86_64)
#error "exmap maps pages by a 64-bit compare-and-swap of x86-64 page-table entries"
#endif
#if LINUX_VERSION_CODE < KERNEL_VERSION(6, 1, 0)
#error "exmap needs Linux 6.1 or later"
#endif
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 14, 0)
/*
 * From 6.14 on, MADV_DONTNEED may free an empty page table while it holds
 * mmap_lock only for reading; the walk in pages.c relies on that not being so.
 */
#error "exmap has not been made ready for Linux 6.14 and later"
#endif
#ifndef CONFIG_MMU_NOTIFIER
#error "exmap needs CONFIG_MMU_NOTIFIER"
#endif
#ifdef CONFIG_PAGE_TABLE_CHECK
#error "exmap does not keep the books that CONFIG_PAGE_TABLE_CHECK checks"
#endif

static inline void exmap_vm_flags_set(struct vm_area_struct *vma,
				      unsigned long flags)
{
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 3, 0)
	vm_flags_set(vma, flags);
#else
	vma->vm_flags |= flags;
#endif
}

static inline void exmap_vm_flags_clear(struct vm_area_struct *vma,
					unsigned long flags)
{
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 3, 0)
	vm_flags_clear(vma, flags);
#else
	vma->vm_flags &= ~flags;
#endif
}

/* add_mm_counter() is inline, but calls a tracing hook that is not exported. */
static inline void exmap_rss_add(struct mm_struct *mm, long pages)
{
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 2, 0)
	percpu_counter_add(&mm->rss_stat[MM_FILEPAGES], pages);
#else
	atomic_long_add(pages, &mm->rss_stat.count[MM_FILEPAGES]);
#endif
}

static inline pte_t exmap_pte_mkwrite(pte_t pte)
{
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 6, 0)
	return pte_mkwrite_novma(pte);
#else
	return pte_mkwrite(pte);
#endif
}

/* The current segment of an iterator over user memory. */
static inline void exmap_iter_segment(const struct iov_iter *iter,
				      unsigned long *addr, size_t *len)
{
	if (iter_is_ubuf(iter)) {
		*addr = (unsigned long)iter->ubuf + iter->iov_offset;
		*len = iov_iter_count(iter);
		return;
	}
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 4, 0)
	*addr = (unsigned long)iter_iov_addr(iter);
	*len = min_t(size_t, iter_iov_len(iter), iov_iter_count(iter));
#else
	*addr = (unsigned long)iov_iter_iovec(iter).iov_base;
	*len = iov_iter_iovec(iter).iov_len;
#endif
}

static inline const void *exmap_uring_payload(struct io_uring_cmd *cmd)
{
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 6, 0)
	return io_uring_sqe_cmd(cmd->sqe);
#else
	return cmd->cmd;
#endif
}

#endif /* EXMAP_COMPAT_H */
