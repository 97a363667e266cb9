// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
/*
 * A kernel module that has one of everything nodeside reads of a module file, and does nothing.
 * tests/corpus/modules/README.md says how specimen.ko was made from it.
 */
#include <linux/init.h>
#include <linux/module.h>
#include <linux/moduleparam.h>

static int level = 3;
module_param(level, int, 0644);
MODULE_PARM_DESC(level, "how much to say: 0 to 7");

static bool quiet;
module_param(quiet, bool, 0);

static char *mode = "soft";
module_param(mode, charp, 0444);

static int lines[4];
static int count;
module_param_array(lines, int, &count, 0444);

static int set_hidden(const char *value, const struct kernel_param *parameter)
{
	return 0;
}

static const struct kernel_param_ops hidden_ops = { .set = set_hidden };
module_param_cb(hidden, &hidden_ops, NULL, 0200);

int specimen_answer(void)
{
	return 42 + level;
}
EXPORT_SYMBOL(specimen_answer);

int specimen_secret(void)
{
	return quiet ? 0 : count;
}
EXPORT_SYMBOL_NS_GPL(specimen_secret, SPECIMEN);

static int __init specimen_init(void)
{
	pr_info("specimen: mode %s\n", mode);
	return 0;
}

static void __exit specimen_exit(void)
{
}

module_init(specimen_init);
module_exit(specimen_exit);
MODULE_VERSION("1.2.3");
MODULE_ALIAS("specimen-alias");
MODULE_FIRMWARE("specimen/one.bin");
MODULE_LICENSE("Dual BSD/GPL");
MODULE_IMPORT_NS(CRYPTO_INTERNAL);
