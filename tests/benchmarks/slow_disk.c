/* A slow disk: each call to it waits, as for a file server. Preloaded by many_files.py:
     SLOW_FOLDER=/data SLOW_MICROSECONDS=2000 LD_PRELOAD=slow_disk.so python ...
   Calls on paths below SLOW_FOLDER wait: stat, lstat, open, opendir, each 32 KiB of a folder's names, read and pread. */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

#define MAX_FILES 65536
#define FOLDER_BYTES 32768

static atomic_long num_calls;
static atomic_char is_slow_file[MAX_FILES];
static atomic_long folder_bytes[MAX_FILES];
static const char *folder;
static size_t folder_length;
static struct timespec pause_;

__attribute__((constructor)) static void begin(void) {
  const char *microseconds = getenv("SLOW_MICROSECONDS");
  long time = microseconds ? atol(microseconds) : 0;
  folder = getenv("SLOW_FOLDER");
  folder_length = folder ? strlen(folder) : 0;
  pause_.tv_sec = time / 1000000;
  pause_.tv_nsec = time % 1000000 * 1000;
}

long slow_calls(void) { return atomic_load(&num_calls); }

static int is_slow(int fd, const char *path) {
  if (!folder_length || !path) return 0;
  if (path[0] == '/') return !strncmp(path, folder, folder_length);
  return fd >= 0 && fd < MAX_FILES && is_slow_file[fd];
}

static int wait_for(int slow) {
  if (slow) {
    atomic_fetch_add(&num_calls, 1);
    nanosleep(&pause_, NULL);
  }
  return slow;
}

static void mark(int fd, int slow) {
  if (fd >= 0 && fd < MAX_FILES) {
    is_slow_file[fd] = slow;
    folder_bytes[fd] = 0;
  }
}

#define REAL(name) static __typeof__(&name) real; if (!real) real = (__typeof__(&name))dlsym(RTLD_NEXT, #name)

#define STAT(name, type) \
  int name(const char *path, struct type *about) { \
    REAL(name); \
    wait_for(is_slow(-1, path)); \
    return real(path, about); \
  }
STAT(stat, stat) STAT(stat64, stat64) STAT(lstat, stat) STAT(lstat64, stat64)

#define STAT_AT(name, type) \
  int name(int fd, const char *path, struct type *about, int flags) { \
    REAL(name); \
    wait_for(is_slow(fd, path)); \
    return real(fd, path, about, flags); \
  }
STAT_AT(fstatat, stat) STAT_AT(fstatat64, stat64)

#define MODE() \
  mode_t mode = 0; \
  if (flags & (O_CREAT | O_TMPFILE)) { va_list more; va_start(more, flags); mode = va_arg(more, mode_t); va_end(more); }

#define OPEN(name) \
  int name(const char *path, int flags, ...) { \
    REAL(name); \
    MODE() \
    int slow = wait_for(is_slow(-1, path)), fd = real(path, flags, mode); \
    mark(fd, slow); \
    return fd; \
  }
OPEN(open) OPEN(open64)

#define OPEN_AT(name) \
  int name(int at, const char *path, int flags, ...) { \
    REAL(name); \
    MODE() \
    int slow = wait_for(is_slow(at, path)), fd = real(at, path, flags, mode); \
    mark(fd, slow); \
    return fd; \
  }
OPEN_AT(openat) OPEN_AT(openat64)

DIR *opendir(const char *path) {
  REAL(opendir);
  int slow = wait_for(is_slow(-1, path));
  DIR *entries = real(path);
  if (entries) mark(dirfd(entries), slow);
  return entries;
}

static void count_bytes(DIR *entries, long bytes) {
  int fd = dirfd(entries);
  if (fd < 0 || fd >= MAX_FILES || !is_slow_file[fd]) return;
  long before = atomic_fetch_add(&folder_bytes[fd], bytes);
  if (!before || before / FOLDER_BYTES != (before + bytes) / FOLDER_BYTES) wait_for(1);
}

#define READ_FOLDER(name, type) \
  struct type *name(DIR *entries) { \
    REAL(name); \
    struct type *entry = real(entries); \
    if (entry) count_bytes(entries, entry->d_reclen); \
    return entry; \
  }
READ_FOLDER(readdir, dirent) READ_FOLDER(readdir64, dirent64)

static void wait_for_file(int fd) { wait_for(fd >= 0 && fd < MAX_FILES && is_slow_file[fd]); }

ssize_t read(int fd, void *to, size_t size) {
  REAL(read);
  wait_for_file(fd);
  return real(fd, to, size);
}

ssize_t pread64(int fd, void *to, size_t size, off64_t offset) {
  REAL(pread64);
  wait_for_file(fd);
  return real(fd, to, size, offset);
}

int close(int fd) {
  REAL(close);
  mark(fd, 0);
  return real(fd);
}
