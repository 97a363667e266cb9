// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * A driver without hardware of its own: it computes with the devices of the
 * driver edu, whose symbol edu_compute it imports. So edu is loaded before it,
 * and cannot be unloaded before it.
 *
 *   /dev/edu-peer                           open it to hold the module
 *   /sys/class/misc/edu-peer/sum            write n, read 0! + 1! + ... + n!
 *
 * modulo 2^32.
 */

#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/atomic.h>
#include <linux/device.h>
#include <linux/fs.h>
#include <linux/init.h>
#include <linux/kstrtox.h>
#include <linux/miscdevice.h>
#include <linux/module.h>
#include <linux/sysfs.h>

#define EDU_PEER_MAX	12	/* 13! does not fit into 32 bits */

int edu_compute(u32 n, u32 *result);	/* examples/edu/src/edu.c */

static atomic_t edu_peer_sum;

static ssize_t sum_store(struct device *dev, struct device_attribute *attr,
			 const char *text, size_t count)
{
	u32 n, each, i, sum = 0;
	int err;

	err = kstrtou32(text, 10, &n);
	if (err)
		return err;
	if (n > EDU_PEER_MAX)
		return -ERANGE;
	for (i = 0; i <= n; i++) {
		err = edu_compute(i, &each);
		if (err)
			return err;
		sum += each;
	}
	atomic_set(&edu_peer_sum, sum);
	return count;
}

static ssize_t sum_show(struct device *dev, struct device_attribute *attr, char *text)
{
	return sysfs_emit(text, "%u\n", (u32)atomic_read(&edu_peer_sum));
}
static DEVICE_ATTR_RW(sum);

static struct attribute *edu_peer_attrs[] = {
	&dev_attr_sum.attr,
	NULL
};
ATTRIBUTE_GROUPS(edu_peer);

static const struct file_operations edu_peer_fops = {
	.owner = THIS_MODULE,
};

static struct miscdevice edu_peer_device = {
	.minor = MISC_DYNAMIC_MINOR,
	.name = "edu-peer",
	.fops = &edu_peer_fops,
	.groups = edu_peer_groups,
};
module_misc_device(edu_peer_device);

MODULE_DESCRIPTION("Computes with the devices of the driver edu");
MODULE_AUTHOR("The nodeside authors");
MODULE_LICENSE("Dual MIT/GPL");
MODULE_VERSION("1.0.0");
