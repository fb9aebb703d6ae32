//! What `--help` of the commands of `vellum pmem` shows after their options.

pub const CREATE: &str = "\
Examples:
  vellum pmem create /mnt/pmem/store                      keys and values of any size
  vellum pmem create /mnt/pmem/small --sizes 16/200       records of one size: less space, faster
  vellum pmem create /dev/dax0.0 --overwrite              on a device, whatever it holds
  vellum pmem create /tmp/store                           on any other file: slower";

pub const PUT: &str = "\
Examples:
  vellum pmem put /mnt/pmem/store greeting 'hello'
  vellum pmem put /mnt/pmem/store photo --file photo.jpg    the contents of a file
  vellum pmem put /mnt/pmem/store today - < today.txt       what is read from standard input";

pub const GET: &str = "\
Examples:
  vellum pmem get /mnt/pmem/store greeting
  vellum pmem get /mnt/pmem/store photo > photo.jpg

Exits with 1 if there is no such key.";

pub const DELETE: &str = "\
Example:
  vellum pmem delete /mnt/pmem/store greeting

Exits with 1 if there is no such key.";

pub const SCAN: &str = "\
Examples:
  vellum pmem scan /mnt/pmem/store                              everything
  vellum pmem scan /mnt/pmem/store --prefix letters/ --keys     keys that begin with letters/
  vellum pmem scan /mnt/pmem/store --limit 10                   any ten
  vellum pmem scan /mnt/pmem/store --tolerate-damage            what is left of a damaged store";

pub const STAT: &str = "\
Examples:
  vellum pmem stat /mnt/pmem/store
  vellum pmem stat /mnt/pmem/store --json    for programs";

pub const VERIFY: &str = "\
Examples:
  vellum pmem verify /mnt/pmem/store
  vellum pmem verify /mnt/pmem/store --json    for programs

Exits with 3 if something is damaged.";

pub const BENCH: &str = "\
Examples:
  vellum pmem bench /mnt/pmem/new --records 100000 --threads 4
  vellum pmem bench /dev/shm/new --persistence dax --vouch-for-memory    with memory as a stand-in";
