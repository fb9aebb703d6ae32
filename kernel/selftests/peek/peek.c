// SPDX-License-Identifier: GPL-2.0-only
/*
 * peek.c - lets a test see its own page-table entries, bit by bit
 *
 * pread() of 8 bytes from /proc/exmap-peek, at an address as the offset, gives
 * the entry of the last level for that address: 0 where there is none. Nothing
 * else that a program can ask tells whether the dirty bit of the hardware is
 * set. For tests in a guest, and only there: it checks little.
 */
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/pgtable.h>
#include <linux/proc_fs.h>
#include <linux/uaccess.h>

static u64 look(struct mm_struct *mm, unsigned long addr)
{
	pgd_t *pgd = pgd_offset(mm, addr);
	p4d_t *p4d;
	pud_t *pud;
	pmd_t *pmd;

	if (pgd_none(*pgd) || pgd_bad(*pgd))
		return 0;
	p4d = p4d_offset(pgd, addr);
	if (p4d_none(*p4d) || p4d_bad(*p4d))
		return 0;
	pud = pud_offset(p4d, addr);
	if (pud_none(*pud) || pud_bad(*pud))
		return 0;
	pmd = pmd_offset(pud, addr);
	if (pmd_none(*pmd) || pmd_bad(*pmd))
		return 0;
	return pte_val(READ_ONCE(*pte_offset_kernel(pmd, addr)));
}

static ssize_t peek_read(struct file *file, char __user *buffer, size_t size,
			 loff_t *position)
{
	unsigned long addr = *position;
	u64 entry;

	if (size != sizeof(entry) || addr >= TASK_SIZE)
		return -EINVAL;
	if (mmap_read_lock_killable(current->mm))
		return -EINTR;
	/* Keeps a page table that is taken away, as in the module. */
	rcu_read_lock();
	entry = look(current->mm, addr);
	rcu_read_unlock();
	mmap_read_unlock(current->mm);
	return copy_to_user(buffer, &entry, sizeof(entry)) ? -EFAULT :
							     sizeof(entry);
}

static const struct proc_ops peek_ops = {
	.proc_read = peek_read,
};

static int __init peek_init(void)
{
	return proc_create("exmap-peek", 0400, NULL, &peek_ops) ? 0 : -ENOMEM;
}

static void __exit peek_exit(void)
{
	remove_proc_entry("exmap-peek", NULL);
}

module_init(peek_init);
module_exit(peek_exit);

MODULE_LICENSE("GPL v2");
MODULE_AUTHOR("The Vellum authors");
MODULE_DESCRIPTION("Page-table entries, for the tests of exmap");
