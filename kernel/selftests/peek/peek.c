// SPDX-License-Identifier: GPL-2.0-only
/*
 * peek.c - shows tests what no program can ask, and makes memory seem larger
 *
 * pread() of 8 bytes from /proc/exmap-peek, at an address as the offset, gives
 * the entry of the last level for that address: 0 where there is none. So a
 * test sees whether the dirty bit of the hardware is set.
 *
 * While /proc/exmap-locks is open, the spinlocks are counted that exmap takes
 * for the task that opened it; pread() of 8 bytes at 0 gives the count.
 *
 * While /proc/exmap-ram is open, the kernel believes that it has 1 TiB more.
 *
 * For tests in a guest, and only there: it checks little.
 */
#include <linux/kprobes.h>
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

static struct task_struct *counted;
static u64 locks_taken;

/* At the first instruction: the caller's address is on top of the stack. */
static int lock_taken(struct kprobe *probe, struct pt_regs *regs)
{
	char caller[KSYM_SYMBOL_LEN];

	if (current != READ_ONCE(counted))
		return 0;
	snprintf(caller, sizeof(caller), "%ps", (void *)*(long *)regs->sp);
	if (strstr(caller, "[exmap]"))
		locks_taken++;
	return 0;
}

static struct kprobe lock_probe;

static int locks_open(struct inode *inode, struct file *file)
{
	int err;

	if (cmpxchg(&counted, NULL, current))
		return -EBUSY;
	locks_taken = 0;
	/* One that was unregistered cannot be registered as it is. */
	lock_probe = (struct kprobe) {
		.symbol_name = "_raw_spin_lock",
		.pre_handler = lock_taken,
	};
	err = register_kprobe(&lock_probe);
	if (err)
		WRITE_ONCE(counted, NULL);
	return err;
}

static int locks_release(struct inode *inode, struct file *file)
{
	unregister_kprobe(&lock_probe);
	WRITE_ONCE(counted, NULL);
	return 0;
}

static ssize_t locks_read(struct file *file, char __user *buffer, size_t size,
			  loff_t *position)
{
	u64 taken = locks_taken;

	if (size != sizeof(taken))
		return -EINVAL;
	return copy_to_user(buffer, &taken, sizeof(taken)) ? -EFAULT :
							     sizeof(taken);
}

static const struct proc_ops locks_ops = {
	.proc_open = locks_open,
	.proc_read = locks_read,
	.proc_release = locks_release,
};

#define MORE_PAGES (1L << (40 - PAGE_SHIFT))

static int ram_open(struct inode *inode, struct file *file)
{
	totalram_pages_add(MORE_PAGES);
	return 0;
}

static int ram_release(struct inode *inode, struct file *file)
{
	totalram_pages_add(-MORE_PAGES);
	return 0;
}

static const struct proc_ops ram_ops = {
	.proc_open = ram_open,
	.proc_release = ram_release,
};

static void peek_exit(void)
{
	remove_proc_subtree("exmap-ram", NULL);
	remove_proc_subtree("exmap-locks", NULL);
	remove_proc_subtree("exmap-peek", NULL);
}

static int __init peek_init(void)
{
	if (proc_create("exmap-peek", 0400, NULL, &peek_ops) &&
	    proc_create("exmap-locks", 0400, NULL, &locks_ops) &&
	    proc_create("exmap-ram", 0400, NULL, &ram_ops))
		return 0;
	peek_exit();
	return -ENOMEM;
}

module_init(peek_init);
module_exit(peek_exit);

MODULE_LICENSE("GPL v2");
MODULE_AUTHOR("The Vellum authors");
MODULE_DESCRIPTION("What the tests of exmap look at in the kernel");
