// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * Driver for the educational PCI device of QEMU ("-device edu", 1234:11e8).
 *
 * The device inverts a number, computes factorials, and copies memory to and
 * from a buffer of its own; the last two take a while and end in an interrupt.
 * Its registers are described in docs/specs/edu of the QEMU sources.
 *
 * What the driver offers:
 *
 *   /dev/edu<N>              write a decimal number, read its factorial
 *   <device>/factorial       the same as an attribute
 *   <device>/liveness        "ok" if the device inverts a number
 *   <device>/selftest        "ok" if a factorial and a DMA round trip succeed
 *   <device>/interrupts      how many interrupts the device has raised
 *   edu_compute()            a factorial for other modules
 *
 * with <device> = /sys/bus/pci/drivers/edu/0000:00:04.0 or alike. Factorials
 * are modulo 2^32, as the device computes them.
 *
 * Lifetime: everything that belongs to the bound device is managed (devm_,
 * pcim_) and goes in reverse order when the driver is unbound. Only struct
 * edu_device can live longer: an open file holds a reference, and finds
 * "gone" set when it comes too late. An open file also holds a reference to
 * the module, by way of file_operations.owner.
 *
 * Locking: "lock" admits one operation at a time to the device; it also
 * guards "gone", the DMA buffer and the attribute's answer. The interrupt
 * handler takes no lock.
 */

#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/atomic.h>
#include <linux/bits.h>
#include <linux/dma-mapping.h>
#include <linux/err.h>
#include <linux/fs.h>
#include <linux/idr.h>
#include <linux/interrupt.h>
#include <linux/io.h>
#include <linux/iopoll.h>
#include <linux/jiffies.h>
#include <linux/kernel.h>
#include <linux/kref.h>
#include <linux/kstrtox.h>
#include <linux/miscdevice.h>
#include <linux/module.h>
#include <linux/mutex.h>
#include <linux/pci.h>
#include <linux/random.h>
#include <linux/slab.h>
#include <linux/sysfs.h>
#include <linux/wait.h>

#define EDU_BAR			0

/* Registers of BAR 0. Below 0x80 only accesses of 32 bits are allowed. */
#define EDU_ID			0x00	/* 0xRRrr00ed: major, minor */
#define EDU_LIVENESS		0x04	/* reads as the inverse of what was written */
#define EDU_FACTORIAL		0x08
#define EDU_STATUS		0x20
#define EDU_IRQ_STATUS		0x24
#define EDU_IRQ_ACK		0x64
#define EDU_DMA_SOURCE		0x80
#define EDU_DMA_DESTINATION	0x88
#define EDU_DMA_COUNT		0x90
#define EDU_DMA_COMMAND		0x98
#define EDU_REGISTERS_END	0xa0

#define EDU_ID_MASK		0xffff
#define EDU_ID_VALUE		0x00ed

#define EDU_STATUS_COMPUTING	BIT(0)
#define EDU_STATUS_IRQ_ENABLE	BIT(7)	/* interrupt when a factorial is done */

#define EDU_IRQ_FACTORIAL	BIT(0)
#define EDU_IRQ_DMA		BIT(8)

#define EDU_DMA_RUN		BIT(0)
#define EDU_DMA_TO_RAM		BIT(1)	/* else from RAM to the device */
#define EDU_DMA_IRQ_ENABLE	BIT(2)

/*
 * The device's own buffer of 4096 bytes, as an address for the DMA registers.
 * Half of it is used: QEMU 7 takes a transfer to its very end for an overrun,
 * and aborts.
 */
#define EDU_BUFFER		0x40000
#define EDU_TRANSFER_SIZE	2048
#define EDU_DMA_BITS		28

/* Enough for "4294967295\n" and a zero byte. */
#define EDU_NUMBER_SIZE		12

#define EDU_TIMEOUT_MAX_MS	10000

static unsigned int timeout_ms = 1000;
module_param(timeout_ms, uint, 0444);
MODULE_PARM_DESC(timeout_ms,
		 "How long to wait for the device, 1 to 10000 ms (default 1000; a DMA takes 100)");

static DEFINE_IDA(edu_ids);

/**
 * struct edu_device - one device
 * @refs: held by the bound driver, and by every open file
 * @pdev: the PCI device; valid while the driver is bound
 * @mmio: BAR 0; valid while the driver is bound
 * @wait: where the current operation waits for its interrupt
 * @events: EDU_IRQ_* bits that were raised and not yet consumed
 * @interrupts: how many interrupts were handled
 * @lock: one operation at a time; see the top of this file
 * @gone: the driver is unbound, @mmio and @buffer must not be touched
 * @buffer: memory for DMA: one half goes out, the other comes back
 * @buffer_dma: the address of @buffer as the device sees it
 * @answered: somebody has written to the attribute "factorial"
 * @answer: what the attribute "factorial" reads
 * @id: number of the device node
 * @name: name of the device node
 * @misc: the device node
 */
struct edu_device {
	struct kref refs;
	struct pci_dev *pdev;
	void __iomem *mmio;
	wait_queue_head_t wait;
	atomic_t events;
	atomic_t interrupts;

	struct mutex lock; /* see @lock above */
	bool gone;
	u8 *buffer;
	dma_addr_t buffer_dma;
	bool answered;
	u32 answer;

	int id;
	char name[16];
	struct miscdevice misc;
};

/**
 * struct edu_file - one open file
 * @edu: the device; a reference is held
 * @lock: guards the answer
 * @answer: the text that is read; empty until a number has been written
 * @length: bytes in @answer
 */
struct edu_file {
	struct edu_device *edu;
	struct mutex lock; /* see @lock above */
	char answer[EDU_NUMBER_SIZE];
	size_t length;
};

static void edu_free(struct kref *refs)
{
	kfree(container_of(refs, struct edu_device, refs));
}

/* The device: one operation at a time */

/* Enter the device. On success the caller must call edu_leave(). */
static int edu_enter(struct edu_device *edu)
{
	if (mutex_lock_interruptible(&edu->lock))
		return -ERESTARTSYS;
	if (edu->gone) {
		mutex_unlock(&edu->lock);
		return -ENODEV;
	}
	return 0;
}

static void edu_leave(struct edu_device *edu)
{
	mutex_unlock(&edu->lock);
}

static bool edu_busy(struct edu_device *edu)
{
	return ioread32(edu->mmio + EDU_STATUS) & EDU_STATUS_COMPUTING ||
	       ioread32(edu->mmio + EDU_DMA_COMMAND) & EDU_DMA_RUN;
}

/* Prepare for an operation that ends in @event. */
static int edu_begin(struct edu_device *edu, u32 event)
{
	lockdep_assert_held(&edu->lock);

	/* An operation that timed out cannot be stopped, only waited for. */
	if (edu_busy(edu))
		return -EBUSY;
	atomic_andnot(event, &edu->events);
	return 0;
}

/*
 * Wait for the operation that ends in @event.
 *
 * The interrupt of an earlier operation that timed out may arrive as late as
 * now, hence the look at the registers as well.
 */
static int edu_finish(struct edu_device *edu, u32 event)
{
	lockdep_assert_held(&edu->lock);

	if (!wait_event_timeout(edu->wait,
				(atomic_read(&edu->events) & event) && !edu_busy(edu),
				msecs_to_jiffies(timeout_ms)))
		return -ETIMEDOUT;
	return 0;
}

static int edu_factorial(struct edu_device *edu, u32 n, u32 *result)
{
	int err;

	err = edu_begin(edu, EDU_IRQ_FACTORIAL);
	if (err)
		return err;
	iowrite32(n, edu->mmio + EDU_FACTORIAL);
	err = edu_finish(edu, EDU_IRQ_FACTORIAL);
	if (err)
		return err;
	*result = ioread32(edu->mmio + EDU_FACTORIAL);
	return 0;
}

/*
 * Copy EDU_TRANSFER_SIZE bytes by DMA.
 *
 * The address registers have 64 bits, but the DMA mask leaves 28 in use, and a
 * write of 32 bits clears the rest: no need of writeq(), which not every
 * architecture has.
 */
static int edu_dma(struct edu_device *edu, u32 source, u32 destination, u32 direction)
{
	int err;

	err = edu_begin(edu, EDU_IRQ_DMA);
	if (err)
		return err;
	iowrite32(source, edu->mmio + EDU_DMA_SOURCE);
	iowrite32(destination, edu->mmio + EDU_DMA_DESTINATION);
	iowrite32(EDU_TRANSFER_SIZE, edu->mmio + EDU_DMA_COUNT);
	iowrite32(EDU_DMA_RUN | EDU_DMA_IRQ_ENABLE | direction, edu->mmio + EDU_DMA_COMMAND);
	return edu_finish(edu, EDU_IRQ_DMA);
}

static int edu_check_liveness(struct edu_device *edu)
{
	u32 number = get_random_u32();

	iowrite32(number, edu->mmio + EDU_LIVENESS);
	return ioread32(edu->mmio + EDU_LIVENESS) == ~number ? 0 : -EIO;
}

static int edu_check_factorial(struct edu_device *edu)
{
	u32 result;
	int err;

	err = edu_factorial(edu, 10, &result);
	if (err)
		return err;
	return result == 3628800 ? 0 : -EIO;
}

/* Send random bytes to the device and fetch them back. */
static int edu_check_dma(struct edu_device *edu)
{
	u8 *out = edu->buffer, *back = edu->buffer + EDU_TRANSFER_SIZE;
	u32 out_dma = lower_32_bits(edu->buffer_dma);
	u32 back_dma = out_dma + EDU_TRANSFER_SIZE;
	int err;

	get_random_bytes(out, EDU_TRANSFER_SIZE);
	memset(back, 0, EDU_TRANSFER_SIZE);
	err = edu_dma(edu, out_dma, EDU_BUFFER, 0);
	if (err)
		return err;
	err = edu_dma(edu, EDU_BUFFER, back_dma, EDU_DMA_TO_RAM);
	if (err)
		return err;
	return memcmp(out, back, EDU_TRANSFER_SIZE) ? -EIO : 0;
}

static irqreturn_t edu_interrupt(int irq, void *data)
{
	struct edu_device *edu = data;
	u32 raised = ioread32(edu->mmio + EDU_IRQ_STATUS);

	/* A shared INTx line: not ours. All ones: the device was pulled out. */
	if (!raised || PCI_POSSIBLE_ERROR(raised))
		return IRQ_NONE;

	/* The device wants this for MSI too. */
	iowrite32(raised, edu->mmio + EDU_IRQ_ACK);
	atomic_inc(&edu->interrupts);
	atomic_or(raised, &edu->events);
	wake_up(&edu->wait);
	return IRQ_HANDLED;
}

/* /dev/edu<N> */

static int edu_open(struct inode *inode, struct file *file)
{
	/*
	 * misc_open() put the miscdevice here, and holds the mutex that
	 * misc_deregister() takes: the driver's own reference is still there.
	 */
	struct edu_device *edu = container_of(file->private_data, struct edu_device, misc);
	struct edu_file *ef;

	ef = kzalloc(sizeof(*ef), GFP_KERNEL);
	if (!ef)
		return -ENOMEM;
	mutex_init(&ef->lock);
	kref_get(&edu->refs);
	ef->edu = edu;
	file->private_data = ef;
	return nonseekable_open(inode, file);
}

static int edu_release(struct inode *inode, struct file *file)
{
	struct edu_file *ef = file->private_data;

	kref_put(&ef->edu->refs, edu_free);
	kfree(ef);
	return 0;
}

/* Compute the factorial of the number in @from; reading starts at the answer. */
static ssize_t edu_write(struct file *file, const char __user *from, size_t count, loff_t *pos)
{
	struct edu_file *ef = file->private_data;
	u32 n, result;
	int err;

	/* kstrtou32_from_user() would ignore what follows a long number. */
	if (count >= EDU_NUMBER_SIZE)
		return -EINVAL;
	err = kstrtou32_from_user(from, count, 10, &n);
	if (err)
		return err;

	err = edu_enter(ef->edu);
	if (err)
		return err;
	err = edu_factorial(ef->edu, n, &result);
	edu_leave(ef->edu);
	if (err)
		return err;

	mutex_lock(&ef->lock);
	ef->length = scnprintf(ef->answer, sizeof(ef->answer), "%u\n", result);
	*pos = 0;
	mutex_unlock(&ef->lock);
	return count;
}

static ssize_t edu_read(struct file *file, char __user *to, size_t count, loff_t *pos)
{
	struct edu_file *ef = file->private_data;
	ssize_t done = -ENODATA;

	mutex_lock(&ef->lock);
	if (ef->length)
		done = simple_read_from_buffer(to, count, pos, ef->answer, ef->length);
	mutex_unlock(&ef->lock);
	return done;
}

static const struct file_operations edu_fops = {
	.owner = THIS_MODULE,
	.open = edu_open,
	.release = edu_release,
	.read = edu_read,
	.write = edu_write,
};

/*
 * Attributes of the device. The driver core adds them after a successful probe,
 * and removes them, waiting for readers and writers, before it unbinds: "gone"
 * is never seen here.
 */

static ssize_t factorial_store(struct device *dev, struct device_attribute *attr,
			       const char *text, size_t count)
{
	struct edu_device *edu = dev_get_drvdata(dev);
	u32 n, result;
	int err;

	err = kstrtou32(text, 10, &n);
	if (err)
		return err;
	err = edu_enter(edu);
	if (err)
		return err;
	err = edu_factorial(edu, n, &result);
	if (!err) {
		edu->answer = result;
		edu->answered = true;
	}
	edu_leave(edu);
	return err ? err : count;
}

static ssize_t factorial_show(struct device *dev, struct device_attribute *attr, char *text)
{
	struct edu_device *edu = dev_get_drvdata(dev);
	ssize_t done;
	int err;

	err = edu_enter(edu);
	if (err)
		return err;
	done = edu->answered ? sysfs_emit(text, "%u\n", edu->answer) : -ENODATA;
	edu_leave(edu);
	return done;
}
static DEVICE_ATTR_ADMIN_RW(factorial);

static ssize_t liveness_show(struct device *dev, struct device_attribute *attr, char *text)
{
	struct edu_device *edu = dev_get_drvdata(dev);
	int err;

	err = edu_enter(edu);
	if (err)
		return err;
	err = edu_check_liveness(edu);
	edu_leave(edu);
	return sysfs_emit(text, "%s\n", err ? "dead" : "ok");
}
static DEVICE_ATTR_ADMIN_RO(liveness);

/* Reads "ok", or what failed and why: "dma: -ETIMEDOUT". */
static ssize_t selftest_show(struct device *dev, struct device_attribute *attr, char *text)
{
	struct edu_device *edu = dev_get_drvdata(dev);
	const char *what = "factorial";
	int err;

	err = edu_enter(edu);
	if (err)
		return err;
	err = edu_check_factorial(edu);
	if (!err) {
		what = "dma";
		err = edu_check_dma(edu);
	}
	edu_leave(edu);
	if (err)
		return sysfs_emit(text, "%s: %pe\n", what, ERR_PTR(err));
	return sysfs_emit(text, "ok\n");
}
static DEVICE_ATTR_ADMIN_RO(selftest);

static ssize_t interrupts_show(struct device *dev, struct device_attribute *attr, char *text)
{
	struct edu_device *edu = dev_get_drvdata(dev);

	return sysfs_emit(text, "%u\n", (unsigned int)atomic_read(&edu->interrupts));
}
static DEVICE_ATTR_RO(interrupts);

static struct attribute *edu_attrs[] = {
	&dev_attr_factorial.attr,
	&dev_attr_liveness.attr,
	&dev_attr_selftest.attr,
	&dev_attr_interrupts.attr,
	NULL
};
ATTRIBUTE_GROUPS(edu);

/*
 * Probe. Each step that must be undone says how, at once; all of it is undone
 * in reverse order when probe fails or the driver is unbound, so there is
 * neither an error path nor a remove function.
 */

static void edu_put_action(void *data)
{
	struct edu_device *edu = data;

	kref_put(&edu->refs, edu_free);
}

static struct edu_device *edu_create(struct pci_dev *pdev)
{
	struct edu_device *edu;
	int err;

	/* Not devm_kzalloc(): an open file may outlive the binding. */
	edu = kzalloc(sizeof(*edu), GFP_KERNEL);
	if (!edu)
		return ERR_PTR(-ENOMEM);
	kref_init(&edu->refs);
	edu->pdev = pdev;
	mutex_init(&edu->lock);
	init_waitqueue_head(&edu->wait);
	err = devm_add_action_or_reset(&pdev->dev, edu_put_action, edu);
	return err ? ERR_PTR(err) : edu;
}

/* Map the registers, and make sure that they are those of an edu device. */
static int edu_map(struct edu_device *edu, struct pci_dev *pdev)
{
	struct device *dev = &pdev->dev;
	u32 id;

	if (pci_resource_len(pdev, EDU_BAR) < EDU_REGISTERS_END)
		return dev_err_probe(dev, -ENODEV, "BAR %d is too small\n", EDU_BAR);
	edu->mmio = devm_ioremap_resource(dev, &pdev->resource[EDU_BAR]);
	if (IS_ERR(edu->mmio))
		return PTR_ERR(edu->mmio);

	id = ioread32(edu->mmio + EDU_ID);
	if ((id & EDU_ID_MASK) != EDU_ID_VALUE)
		return dev_err_probe(dev, -ENODEV, "not an edu device: id 0x%08x\n", id);
	if (edu_check_liveness(edu))
		return dev_err_probe(dev, -EIO, "the device does not answer\n");
	return 0;
}

/*
 * Nothing may write to the buffer, nor raise an interrupt, once buffer and
 * handler are gone: let a transfer that timed out end, then cut the device off.
 */
static void edu_quiesce_action(void *data)
{
	struct edu_device *edu = data;
	u32 command;

	iowrite32(0, edu->mmio + EDU_STATUS);
	if (read_poll_timeout(ioread32, command, !(command & EDU_DMA_RUN),
			      USEC_PER_MSEC, USEC_PER_SEC, false,
			      edu->mmio + EDU_DMA_COMMAND))
		dev_warn(&edu->pdev->dev, "a transfer does not end\n");
	pci_clear_master(edu->pdev);
	iowrite32(ioread32(edu->mmio + EDU_IRQ_STATUS), edu->mmio + EDU_IRQ_ACK);
}

/* Get memory for DMA and an interrupt, and let the device use them. */
static int edu_start(struct edu_device *edu, struct pci_dev *pdev)
{
	struct device *dev = &pdev->dev;
	int err;

	err = dma_set_mask_and_coherent(dev, DMA_BIT_MASK(EDU_DMA_BITS));
	if (err)
		return dev_err_probe(dev, err, "no DMA with %d bits\n", EDU_DMA_BITS);
	edu->buffer = dmam_alloc_coherent(dev, 2 * EDU_TRANSFER_SIZE, &edu->buffer_dma, GFP_KERNEL);
	if (!edu->buffer)
		return -ENOMEM;

	/* MSI if possible, else INTx; pcim_enable_device() made this managed. */
	err = pci_alloc_irq_vectors(pdev, 1, 1, PCI_IRQ_ALL_TYPES);
	if (err < 0)
		return dev_err_probe(dev, err, "no interrupt\n");
	err = devm_request_irq(dev, pci_irq_vector(pdev, 0), edu_interrupt, IRQF_SHARED,
			       KBUILD_MODNAME, edu);
	if (err)
		return dev_err_probe(dev, err, "no interrupt handler\n");

	pci_set_master(pdev);
	iowrite32(EDU_STATUS_IRQ_ENABLE, edu->mmio + EDU_STATUS);
	return devm_add_action_or_reset(dev, edu_quiesce_action, edu);
}

static void edu_free_id_action(void *data)
{
	struct edu_device *edu = data;

	ida_free(&edu_ids, edu->id);
}

/* No new opens, and whoever has the file open finds the device gone. */
static void edu_disconnect_action(void *data)
{
	struct edu_device *edu = data;

	misc_deregister(&edu->misc);
	mutex_lock(&edu->lock);
	edu->gone = true;
	mutex_unlock(&edu->lock);
}

/* Make /dev/edu<N>. From here on, there are users. */
static int edu_publish(struct edu_device *edu, struct device *dev)
{
	int err;

	edu->id = ida_alloc(&edu_ids, GFP_KERNEL);
	if (edu->id < 0)
		return edu->id;
	err = devm_add_action_or_reset(dev, edu_free_id_action, edu);
	if (err)
		return err;

	snprintf(edu->name, sizeof(edu->name), "edu%d", edu->id);
	edu->misc.minor = MISC_DYNAMIC_MINOR;
	edu->misc.name = edu->name;
	edu->misc.fops = &edu_fops;
	edu->misc.parent = dev;
	err = misc_register(&edu->misc);
	if (err)
		return dev_err_probe(dev, err, "no device node %s\n", edu->name);
	return devm_add_action_or_reset(dev, edu_disconnect_action, edu);
}

static int edu_probe(struct pci_dev *pdev, const struct pci_device_id *id)
{
	struct edu_device *edu;
	u32 revision;
	int err;

	edu = edu_create(pdev);
	if (IS_ERR(edu))
		return PTR_ERR(edu);
	pci_set_drvdata(pdev, edu);

	err = pcim_enable_device(pdev);
	if (err)
		return dev_err_probe(&pdev->dev, err, "cannot be enabled\n");
	err = edu_map(edu, pdev);
	if (err)
		return err;
	err = edu_start(edu, pdev);
	if (err)
		return err;
	err = edu_publish(edu, &pdev->dev);
	if (err)
		return err;

	/* One line for each probe, and only here: it can be counted. */
	revision = ioread32(edu->mmio + EDU_ID) >> 16;
	dev_info(&pdev->dev, "edu: probe: /dev/%s, revision %u.%u, %s\n", edu->name,
		 revision >> 8, revision & 0xff, pdev->msi_enabled ? "MSI" : "INTx");
	return 0;
}

static const struct pci_device_id edu_pci_ids[] = {
	{ PCI_DEVICE(0x1234, 0x11e8) },
	{ }
};
MODULE_DEVICE_TABLE(pci, edu_pci_ids);

static struct pci_driver edu_driver = {
	.name = KBUILD_MODNAME,
	.id_table = edu_pci_ids,
	.probe = edu_probe,
	.dev_groups = edu_groups,
};

/*
 * Compute the factorial of @n with one of the devices, for modules that come
 * after this one (examples/edu-peer). Without a device, -ENODEV.
 *
 * The lock of the device keeps it bound, and with it the driver's data.
 */
int edu_compute(u32 n, u32 *result);
int edu_compute(u32 n, u32 *result)
{
	struct device *dev = driver_find_next_device(&edu_driver.driver, NULL);
	struct edu_device *edu;
	int err = -ENODEV;

	if (!dev)
		return -ENODEV;
	device_lock(dev);
	edu = dev_get_drvdata(dev);
	if (dev->driver == &edu_driver.driver && edu) {
		err = edu_enter(edu);
		if (!err) {
			err = edu_factorial(edu, n, result);
			edu_leave(edu);
		}
	}
	device_unlock(dev);
	put_device(dev);
	return err;
}
EXPORT_SYMBOL_GPL(edu_compute);

static int __init edu_init(void)
{
	if (timeout_ms < 1 || timeout_ms > EDU_TIMEOUT_MAX_MS) {
		pr_err("timeout_ms=%u is not in 1 to %d\n", timeout_ms, EDU_TIMEOUT_MAX_MS);
		return -EINVAL;
	}
	return pci_register_driver(&edu_driver);
}
module_init(edu_init);

static void __exit edu_exit(void)
{
	pci_unregister_driver(&edu_driver);
}
module_exit(edu_exit);

MODULE_DESCRIPTION("Driver for the educational PCI device of QEMU");
MODULE_AUTHOR("The nodeside authors");
MODULE_LICENSE("Dual MIT/GPL");
MODULE_VERSION("1.0.0");
