// SPDX-License-Identifier: GPL-2.0
/*
 * Shows each educational PCI device of QEMU ("-device edu", 1234:11e8) as an
 * FPGA card with one port, in the layout of one of Intel's two drivers:
 *
 *   layout=dfl     <device>/fpga_region/region<N>/dfl-port.<N>
 *   layout=opae    <device>/fpga/intel-fpga-dev.<N>/intel-fpga-port.<N>
 *
 * with <device> = /sys/bus/pci/devices/0000:00:05.0 or alike. The port has a
 * device node of its name, and these attributes:
 *
 *   afu_id    what the FPGA computes, 32 hex digits; all f if the card crashed
 *   id        the number of the port in its card, always 0
 *   crashed   write 1 to crash the card, 0 to mend it
 *
 * Write a decimal number to the device node, and read its factorial modulo
 * 2^32 from the same open file: the interface of the driver in examples/edu.
 *
 * In Intel's drivers the ports are platform devices. Here they are on a bus of
 * their own, so that no driver in the kernel takes a dfl-port for a real one.
 *
 * Lifetime: what belongs to the bound device is managed (devm_, pcim_) and
 * goes in reverse order when the driver is unbound. struct edu_fpga goes with
 * the last reference to its port, which an open file holds by way of the cdev.
 */

#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/bits.h>
#include <linux/cdev.h>
#include <linux/device.h>
#include <linux/err.h>
#include <linux/fs.h>
#include <linux/idr.h>
#include <linux/io.h>
#include <linux/iopoll.h>
#include <linux/kdev_t.h>
#include <linux/kernel.h>
#include <linux/kstrtox.h>
#include <linux/module.h>
#include <linux/mutex.h>
#include <linux/pci.h>
#include <linux/slab.h>
#include <linux/string.h>
#include <linux/sysfs.h>
#include <linux/time64.h>

#define EDU_BAR			0

/* Registers of BAR 0; docs/specs/edu in the sources of QEMU */
#define EDU_ID			0x00	/* 0xRRrr00ed: major, minor */
#define EDU_FACTORIAL		0x08
#define EDU_STATUS		0x20
#define EDU_REGISTERS_END	0x24

#define EDU_ID_MASK		0xffff
#define EDU_ID_VALUE		0x00ed
#define EDU_STATUS_COMPUTING	BIT(0)

#define EDU_PAUSE_US		100
#define EDU_TIMEOUT_US		(10 * USEC_PER_SEC)

/* Enough for "4294967295\n" and a zero byte. */
#define NUMBER_SIZE		12

#define MOST_CARDS		256

/* Names what is computed; made up for this driver. */
#define AFU_ID			"7d2c5a3be1944f06b8a1c0de0fac7012"
#define AFU_ID_OF_CRASHED	"ffffffffffffffffffffffffffffffff"

static char *layout = "dfl";
module_param(layout, charp, 0444);
MODULE_PARM_DESC(layout, "Whose files in sysfs the cards have: dfl (default) or opae");

/**
 * struct layout - the names of cards and ports in sysfs
 * @name: value of the module parameter
 * @card: name of a card, before its number
 * @port: name of a port, before its number
 * @class: the class of the cards
 */
struct layout {
	const char *name;
	const char *card;
	const char *port;
	struct class class;
};

static struct layout layouts[] = {
	{ "dfl", "region", "dfl-port.", { .name = "fpga_region" } },
	{ "opae", "intel-fpga-dev.", "intel-fpga-port.", { .name = "fpga" } },
};

static struct layout *chosen;
static dev_t first_node;
static DEFINE_IDA(card_ids);

/**
 * struct edu_fpga - one card
 * @port: its port; the last reference to it frees this structure
 * @cdev: the device node of the port
 * @card: the parent of the port, a device of the layout's class
 * @mmio: BAR 0; valid while the driver is bound
 * @lock: one computation at a time; also guards @gone
 * @gone: the driver is unbound, @mmio must not be touched
 * @crashed: somebody has written 1 to the attribute "crashed"
 * @id: the number in the names, and the minor number of the device node
 */
struct edu_fpga {
	struct device port;
	struct cdev cdev;
	struct device *card;
	void __iomem *mmio;
	struct mutex lock; /* see @lock above */
	bool gone;
	bool crashed;
	int id;
};

/**
 * struct edu_fpga_file - one open file
 * @fpga: the card, which the cdev of the open file keeps
 * @lock: guards the answer
 * @answer: the text that is read; empty until a number has been written
 * @length: bytes in @answer
 */
struct edu_fpga_file {
	struct edu_fpga *fpga;
	struct mutex lock; /* see @lock above */
	char answer[NUMBER_SIZE];
	size_t length;
};

/* The card */

/* A card that was pulled out reads as all ones, as a crashed one does. */
static bool works(struct edu_fpga *fpga)
{
	return !READ_ONCE(fpga->crashed) &&
	       (ioread32(fpga->mmio + EDU_ID) & EDU_ID_MASK) == EDU_ID_VALUE;
}

static int wait_until_idle(struct edu_fpga *fpga)
{
	u32 status;
	int err;

	err = read_poll_timeout(ioread32, status,
				!(status & EDU_STATUS_COMPUTING) || PCI_POSSIBLE_ERROR(status),
				EDU_PAUSE_US, EDU_TIMEOUT_US, false, fpga->mmio + EDU_STATUS);
	if (!err && PCI_POSSIBLE_ERROR(status))
		return -EIO;
	return err;
}

static int compute(struct edu_fpga *fpga, u32 n, u32 *result)
{
	int err;

	if (mutex_lock_interruptible(&fpga->lock))
		return -ERESTARTSYS;
	if (fpga->gone) {
		err = -ENODEV;
		goto out;
	}
	if (!works(fpga)) {
		err = -EIO;
		goto out;
	}
	/* One that timed out may still run; the device ignores a second one. */
	err = wait_until_idle(fpga);
	if (err)
		goto out;
	iowrite32(n, fpga->mmio + EDU_FACTORIAL);
	err = wait_until_idle(fpga);
	if (err)
		goto out;
	*result = ioread32(fpga->mmio + EDU_FACTORIAL);
out:
	mutex_unlock(&fpga->lock);
	return err;
}

/* The device node */

static int edu_fpga_open(struct inode *inode, struct file *file)
{
	struct edu_fpga_file *ef;

	ef = kzalloc(sizeof(*ef), GFP_KERNEL);
	if (!ef)
		return -ENOMEM;
	mutex_init(&ef->lock);
	ef->fpga = container_of(inode->i_cdev, struct edu_fpga, cdev);
	file->private_data = ef;
	return nonseekable_open(inode, file);
}

static int edu_fpga_release(struct inode *inode, struct file *file)
{
	kfree(file->private_data);
	return 0;
}

/* Compute the factorial of the number in @from; reading starts at the answer. */
static ssize_t edu_fpga_write(struct file *file, const char __user *from, size_t count, loff_t *pos)
{
	struct edu_fpga_file *ef = file->private_data;
	u32 n, result;
	int err;

	/* kstrtou32_from_user() would ignore what follows a long number. */
	if (count >= NUMBER_SIZE)
		return -EINVAL;
	err = kstrtou32_from_user(from, count, 10, &n);
	if (err)
		return err;
	err = compute(ef->fpga, n, &result);
	if (err)
		return err;

	mutex_lock(&ef->lock);
	ef->length = scnprintf(ef->answer, sizeof(ef->answer), "%u\n", result);
	*pos = 0;
	mutex_unlock(&ef->lock);
	return count;
}

static ssize_t edu_fpga_read(struct file *file, char __user *to, size_t count, loff_t *pos)
{
	struct edu_fpga_file *ef = file->private_data;
	ssize_t done = -ENODATA;

	mutex_lock(&ef->lock);
	if (ef->length)
		done = simple_read_from_buffer(to, count, pos, ef->answer, ef->length);
	mutex_unlock(&ef->lock);
	return done;
}

static const struct file_operations edu_fpga_fops = {
	.owner = THIS_MODULE,
	.open = edu_fpga_open,
	.release = edu_fpga_release,
	.read = edu_fpga_read,
	.write = edu_fpga_write,
};

/*
 * Attributes of the port. They go before the registers do, and their going
 * waits for readers and writers: no need to look at "gone".
 */

static struct edu_fpga *of_port(struct device *port)
{
	return container_of(port, struct edu_fpga, port);
}

static ssize_t afu_id_show(struct device *dev, struct device_attribute *attr, char *text)
{
	return sysfs_emit(text, "%s\n", works(of_port(dev)) ? AFU_ID : AFU_ID_OF_CRASHED);
}
static DEVICE_ATTR_RO(afu_id);

static ssize_t id_show(struct device *dev, struct device_attribute *attr, char *text)
{
	return sysfs_emit(text, "0\n");
}
static DEVICE_ATTR_RO(id);

static ssize_t crashed_show(struct device *dev, struct device_attribute *attr, char *text)
{
	return sysfs_emit(text, "%d\n", READ_ONCE(of_port(dev)->crashed));
}

static ssize_t crashed_store(struct device *dev, struct device_attribute *attr,
			     const char *text, size_t count)
{
	bool crashed;
	int err;

	err = kstrtobool(text, &crashed);
	if (err)
		return err;
	WRITE_ONCE(of_port(dev)->crashed, crashed);
	return count;
}
static DEVICE_ATTR_RW(crashed);

static struct attribute *edu_fpga_attrs[] = {
	&dev_attr_afu_id.attr,
	&dev_attr_id.attr,
	&dev_attr_crashed.attr,
	NULL
};
ATTRIBUTE_GROUPS(edu_fpga);

/* A device is only announced if it has a class or a bus. */
static struct bus_type edu_fpga_bus = {
	.name = "edu-fpga",
};

/*
 * Probe. Each step that must be undone says how, at once; all of it is undone
 * in reverse order when probe fails or the driver is unbound.
 */

static void edu_fpga_free(struct device *port)
{
	struct edu_fpga *fpga = of_port(port);

	ida_free(&card_ids, fpga->id);
	kfree(fpga);
}

static void edu_fpga_put_action(void *data)
{
	struct edu_fpga *fpga = data;

	put_device(&fpga->port);
}

static struct edu_fpga *edu_fpga_create(struct device *dev)
{
	struct edu_fpga *fpga;
	int err;

	/* Not devm_kzalloc(): an open file may outlive the binding. */
	fpga = kzalloc(sizeof(*fpga), GFP_KERNEL);
	if (!fpga)
		return ERR_PTR(-ENOMEM);
	fpga->id = ida_alloc_max(&card_ids, MOST_CARDS - 1, GFP_KERNEL);
	if (fpga->id < 0) {
		err = fpga->id;
		kfree(fpga);
		return ERR_PTR(err);
	}
	mutex_init(&fpga->lock);
	cdev_init(&fpga->cdev, &edu_fpga_fops);
	fpga->cdev.owner = THIS_MODULE;
	device_initialize(&fpga->port);
	fpga->port.release = edu_fpga_free;
	err = devm_add_action_or_reset(dev, edu_fpga_put_action, fpga);
	return err ? ERR_PTR(err) : fpga;
}

/* Map the registers, and make sure that they are those of an edu device. */
static int edu_fpga_map(struct edu_fpga *fpga, struct pci_dev *pdev)
{
	struct device *dev = &pdev->dev;

	if (pci_resource_len(pdev, EDU_BAR) < EDU_REGISTERS_END)
		return dev_err_probe(dev, -ENODEV, "BAR %d is too small\n", EDU_BAR);
	fpga->mmio = devm_ioremap_resource(dev, &pdev->resource[EDU_BAR]);
	if (IS_ERR(fpga->mmio))
		return PTR_ERR(fpga->mmio);
	if (!works(fpga))
		return dev_err_probe(dev, -ENODEV, "not an edu device\n");
	return 0;
}

static void edu_fpga_remove_card_action(void *data)
{
	struct edu_fpga *fpga = data;

	device_unregister(fpga->card);
}

static int edu_fpga_add_card(struct edu_fpga *fpga, struct device *dev)
{
	fpga->card = device_create(&chosen->class, dev, MKDEV(0, 0), NULL, "%s%d",
				   chosen->card, fpga->id);
	if (IS_ERR(fpga->card))
		return dev_err_probe(dev, PTR_ERR(fpga->card), "no card\n");
	return devm_add_action_or_reset(dev, edu_fpga_remove_card_action, fpga);
}

/* No new opens, and whoever has the file open finds the device gone. */
static void edu_fpga_remove_port_action(void *data)
{
	struct edu_fpga *fpga = data;

	cdev_device_del(&fpga->cdev, &fpga->port);
	mutex_lock(&fpga->lock);
	fpga->gone = true;
	mutex_unlock(&fpga->lock);
}

/* Make the port and its device node. From here on, there are users. */
static int edu_fpga_add_port(struct edu_fpga *fpga, struct device *dev)
{
	struct device *port = &fpga->port;
	int err;

	port->parent = fpga->card;
	port->bus = &edu_fpga_bus;
	port->groups = edu_fpga_groups;
	port->devt = MKDEV(MAJOR(first_node), MINOR(first_node) + fpga->id);
	err = dev_set_name(port, "%s%d", chosen->port, fpga->id);
	if (err)
		return err;
	err = cdev_device_add(&fpga->cdev, port);
	if (err)
		return dev_err_probe(dev, err, "no port %s\n", dev_name(port));
	return devm_add_action_or_reset(dev, edu_fpga_remove_port_action, fpga);
}

static int edu_fpga_probe(struct pci_dev *pdev, const struct pci_device_id *id)
{
	struct edu_fpga *fpga;
	int err;

	fpga = edu_fpga_create(&pdev->dev);
	if (IS_ERR(fpga))
		return PTR_ERR(fpga);
	err = pcim_enable_device(pdev);
	if (err)
		return dev_err_probe(&pdev->dev, err, "cannot be enabled\n");
	err = edu_fpga_map(fpga, pdev);
	if (err)
		return err;
	err = edu_fpga_add_card(fpga, &pdev->dev);
	if (err)
		return err;
	err = edu_fpga_add_port(fpga, &pdev->dev);
	if (err)
		return err;
	dev_info(&pdev->dev, "port %s\n", dev_name(&fpga->port));
	return 0;
}

static const struct pci_device_id edu_fpga_pci_ids[] = {
	{ PCI_DEVICE(0x1234, 0x11e8) },
	{ }
};
MODULE_DEVICE_TABLE(pci, edu_fpga_pci_ids);

static struct pci_driver edu_fpga_driver = {
	.name = KBUILD_MODNAME,
	.id_table = edu_fpga_pci_ids,
	.probe = edu_fpga_probe,
};

static struct layout *find_layout(const char *name)
{
	size_t i;

	for (i = 0; i < ARRAY_SIZE(layouts); i++)
		if (!strcmp(layouts[i].name, name))
			return &layouts[i];
	return NULL;
}

static int __init edu_fpga_init(void)
{
	int err;

	chosen = find_layout(layout);
	if (!chosen) {
		pr_err("layout=%s is neither dfl nor opae\n", layout);
		return -EINVAL;
	}
	err = alloc_chrdev_region(&first_node, 0, MOST_CARDS, KBUILD_MODNAME);
	if (err)
		return err;
	/* Fails if Intel's own driver, which has the same class, is loaded. */
	err = class_register(&chosen->class);
	if (err)
		goto free_nodes;
	err = bus_register(&edu_fpga_bus);
	if (err)
		goto free_class;
	err = pci_register_driver(&edu_fpga_driver);
	if (err)
		goto free_bus;
	return 0;

free_bus:
	bus_unregister(&edu_fpga_bus);
free_class:
	class_unregister(&chosen->class);
free_nodes:
	unregister_chrdev_region(first_node, MOST_CARDS);
	return err;
}
module_init(edu_fpga_init);

static void __exit edu_fpga_exit(void)
{
	pci_unregister_driver(&edu_fpga_driver);
	bus_unregister(&edu_fpga_bus);
	class_unregister(&chosen->class);
	unregister_chrdev_region(first_node, MOST_CARDS);
	ida_destroy(&card_ids);
}
module_exit(edu_fpga_exit);

MODULE_DESCRIPTION("QEMU's educational PCI devices, shown as ports of Intel FPGAs");
MODULE_AUTHOR("The nodeside authors");
MODULE_LICENSE("GPL");
MODULE_VERSION("1.0.0");
