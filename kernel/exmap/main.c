// SPDX-License-Identifier: GPL-2.0-only
/*
 * main.c - the device, its files and its ioctls
 *
 * exmap: page tables that a database can drive, in the manner of section 4 of
 * "Virtual-Memory Assisted Buffer Management" (Leis et al., SIGMOD 2023).
 */
#include <linux/fs.h>
#include <linux/miscdevice.h>
#include <linux/module.h>
#include <linux/slab.h>
#include <linux/uaccess.h>

#include "compat.h"
#include "internal.h"

static int exmap_open(struct inode *inode, struct file *file)
{
	struct exmap_file *ef = kzalloc(sizeof(*ef), GFP_KERNEL_ACCOUNT);

	if (!ef)
		return -ENOMEM;
	ef->own = exmap_area_create();
	if (!ef->own) {
		kfree(ef);
		return -ENOMEM;
	}
	ef->area = ef->own;
	file->private_data = ef;
	return 0;
}

static int exmap_release(struct inode *inode, struct file *file)
{
	struct exmap_file *ef = file->private_data;

	if (ef->area != ef->own)
		exmap_area_put(ef->area);
	exmap_area_put(ef->own);
	kfree(ef);
	return 0;
}

static struct exmap_area *area_of(struct file *file)
{
	struct exmap_file *ef = file->private_data;

	/* Pairs with the exchange in ioctl_clone(). */
	return smp_load_acquire(&ef->area);
}

static int exmap_mmap(struct file *file, struct vm_area_struct *vma)
{
	const unsigned long base = EXMAP_OFF_INTERFACE_BASE >> PAGE_SHIFT;
	struct exmap_area *area = area_of(file);

	if (vma->vm_pgoff == EXMAP_OFF_EXMAP >> PAGE_SHIFT)
		return exmap_area_mmap(area, vma);
	if (vma->vm_pgoff >= base)
		return exmap_iface_mmap(area, vma, vma->vm_pgoff - base);
	return -EINVAL;
}

/*
 * Makes @file another name for the area of @fd. Its own must be untouched; it
 * is kept to the end, as calls that began before may still look at it.
 */
static long ioctl_clone(struct file *file, int fd)
{
	struct exmap_file *ef = file->private_data;
	struct exmap_area *area;
	struct file *other = fget(fd);
	long err = -EINVAL;

	if (!other)
		return -EBADF;
	if (other->f_op != &exmap_fops)
		goto out;
	area = area_of(other);
	err = -EBUSY;
	if (area == ef->own || READ_ONCE(ef->own->mm))
		goto out;
	kref_get(&area->ref);
	if (cmpxchg(&ef->area, ef->own, area) == ef->own)
		err = 0;
	else
		exmap_area_put(area);
out:
	fput(other);
	return err;
}

static long ioctl_setup(struct exmap_area *area, void __user *arg)
{
	struct exmap_ioctl_setup setup;

	if (copy_from_user(&setup, arg, sizeof(setup)))
		return -EFAULT;
	return exmap_area_setup(area, &setup);
}

static long ioctl_action(struct exmap_area *area, void __user *arg)
{
	struct exmap_action_params params;

	if (copy_from_user(&params, arg, sizeof(params)))
		return -EFAULT;
	return exmap_action(area, &params);
}

static long ioctl_stats(struct exmap_area *area, void __user *arg)
{
	struct exmap_ioctl_stats stats = { .flags = 1 };
	struct exmap_call call;
	int err = exmap_call_begin(&call, area, 0);

	if (err)
		return err;
	stats.buffer_size = call.pool->nr_pages;
	stats.max_interfaces = call.pool->nr_ifaces;
	stats.alloc_count = stats.buffer_size - exmap_pool_nr_free(call.pool);
	return copy_to_user(arg, &stats, sizeof(stats)) ? -EFAULT : 0;
}

static long ioctl_version(void __user *arg)
{
	struct exmap_version version = {
		.abi = EXMAP_ABI_VERSION,
		.page_size = EXMAP_PAGE_SIZE,
		.features = EXMAP_FEATURE_BLANK,
		.max_ranges = EXMAP_MAX_RANGES,
	};

	if (IS_ENABLED(CONFIG_IO_URING))
		version.features |= EXMAP_FEATURE_URING;
#ifdef EXMAP_TEST_NO_FLUSH
	version.features |= EXMAP_FEATURE_NO_FLUSH;
#endif
	return copy_to_user(arg, &version, sizeof(version)) ? -EFAULT : 0;
}

static long ioctl_counters(struct exmap_area *area, void __user *arg)
{
	struct exmap_counters sum = {};
	struct exmap_call call;
	u32 i;
	int err = exmap_call_begin(&call, area, 0);

	if (err)
		return err;
	for (i = 0; i < call.pool->nr_ifaces; i++) {
		struct exmap_iface *iface = &call.pool->ifaces[i];

		sum.allocated += atomic64_read(&iface->allocated);
		sum.released += atomic64_read(&iface->released);
		sum.read += atomic64_read(&iface->read);
		sum.flushes += atomic64_read(&iface->flushes);
		sum.flushes_blank += atomic64_read(&iface->flushes_blank);
		sum.stolen_last += atomic64_read(&iface->stolen_last);
		sum.stolen_random += atomic64_read(&iface->stolen_random);
		sum.stolen_any += atomic64_read(&iface->stolen_any);
	}
	sum.pages_pool = call.pool->nr_pages;
	sum.pages_free = exmap_pool_nr_free(call.pool);
	sum.pages_parked = READ_ONCE(call.pool->nr_parked);
	sum.recovered = atomic64_read(&call.pool->recovered);
	return copy_to_user(arg, &sum, sizeof(sum)) ? -EFAULT : 0;
}

static long ioctl_options(struct exmap_area *area, void __user *arg)
{
	struct exmap_options options;

	if (copy_from_user(&options, arg, sizeof(options)))
		return -EFAULT;
	return exmap_area_options(area, &options);
}

static long exmap_ioctl(struct file *file, unsigned int cmd, unsigned long arg)
{
	struct exmap_area *area = area_of(file);
	void __user *user = (void __user *)arg;

	switch (cmd) {
	case EXMAP_IOCTL_SETUP:
		return ioctl_setup(area, user);
	case EXMAP_IOCTL_ACTION:
		return ioctl_action(area, user);
	case EXMAP_IOCTL_CLONE:
		return ioctl_clone(file, arg);
	case EXMAP_IOCTL_STATS:
		return ioctl_stats(area, user);
	case EXMAP_IOCTL_VERSION:
		return ioctl_version(user);
	case EXMAP_IOCTL_BATCH:
		return exmap_batch(area, user);
	case EXMAP_IOCTL_COUNTERS:
		return ioctl_counters(area, user);
	case EXMAP_IOCTL_OPTIONS:
		return ioctl_options(area, user);
	default:
		return -EINVAL;
	}
}

const struct file_operations exmap_fops = {
	.owner = THIS_MODULE,
	.open = exmap_open,
	.release = exmap_release,
	.mmap = exmap_mmap,
	.unlocked_ioctl = exmap_ioctl,
	.read_iter = exmap_read_iter,
	.uring_cmd = exmap_uring_cmd,
};

/* All users may open it: what it takes is charged to their own limits. */
static struct miscdevice exmap_device = {
	.minor = MISC_DYNAMIC_MINOR,
	.name = "exmap",
	.mode = 0666,
	.fops = &exmap_fops,
};

static void __init check_layout(void)
{
	BUILD_BUG_ON(PAGE_SIZE != EXMAP_PAGE_SIZE);
	BUILD_BUG_ON(EXMAP_IOCTL_SETUP != 0x40186b01);
	BUILD_BUG_ON(EXMAP_IOCTL_ACTION != 0x40106b02);
	BUILD_BUG_ON(EXMAP_IOCTL_CLONE != 0x40046b03);
	BUILD_BUG_ON(EXMAP_IOCTL_STATS != 0x40206b04);
	BUILD_BUG_ON(offsetof(struct exmap_action_params, flags) != 8);
	BUILD_BUG_ON(sizeof(struct exmap_iov) != 8);
	BUILD_BUG_ON(sizeof(struct exmap_user_interface) != PAGE_SIZE);
	BUILD_BUG_ON(sizeof(struct exmap_range) != 32);
	BUILD_BUG_ON(sizeof(struct exmap_batch) != 40);
	BUILD_BUG_ON(sizeof(struct exmap_counters) != 96);
	BUILD_BUG_ON(sizeof(struct exmap_options) != 16);
}

static int __init exmap_init(void)
{
	int err;

	check_layout();
	err = exmap_pages_init();
	if (!err)
		err = exmap_tlb_init();
	if (err)
		return err;
#ifdef EXMAP_TEST_NO_FLUSH
	pr_alert("exmap: built without TLB flushes, for tests only: pages leak between addresses\n");
#endif
	return misc_register(&exmap_device);
}

static void __exit exmap_exit(void)
{
	misc_deregister(&exmap_device);
}

module_init(exmap_init);
module_exit(exmap_exit);

MODULE_LICENSE("GPL v2");
MODULE_AUTHOR("The Vellum authors");
MODULE_DESCRIPTION("Page tables that a database can drive");
