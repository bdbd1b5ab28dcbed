/* What the file STUCK_SWITCH begins with happens to files below STUCK_FOLDER, until it has gone:
 * 'f': writes and syncs fail (EIO); 's': syncs wait; 'b': writes and syncs wait.
 * Loaded by LD_PRELOAD. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

static char mode(const char *file) {
    char first = 0;
    int switched = open(file, O_RDONLY | O_CLOEXEC);
    if (switched >= 0) {
        if (read(switched, &first, 1) != 1)
            first = 0;
        close(switched);
    }
    return first;
}

static int is_below(int descriptor, const char *folder) {
    char link[64], path[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length <= 0)
        return 0;
    path[length] = 0;
    return strncmp(path, folder, strlen(folder)) == 0;
}

/* Whether the call is to fail; returns after the wait. */
static int fails(int descriptor, int is_sync) {
    const char *file = getenv("STUCK_SWITCH"), *folder = getenv("STUCK_FOLDER");
    if (file == NULL || folder == NULL || access(file, F_OK) != 0 || !is_below(descriptor, folder))
        return 0;
    int kept = errno;
    char now;
    while ((now = mode(file)) == 'b' || (now == 's' && is_sync))
        usleep(5000);
    errno = now == 'f' ? EIO : kept;
    return now == 'f';
}

typedef ssize_t (*Write)(int, const void *, size_t);
typedef ssize_t (*WriteAt)(int, const void *, size_t, off64_t);
typedef int (*Sync)(int);

/* The C library's function of this name, which the one that is defined here hides. */
#define ORIGINAL(type, name)                        \
    static type original;                           \
    if (original == NULL)                           \
        original = (type)dlsym(RTLD_NEXT, name)

ssize_t write(int descriptor, const void *data, size_t size) {
    ORIGINAL(Write, "write");
    return fails(descriptor, 0) ? -1 : original(descriptor, data, size);
}

ssize_t pwrite(int descriptor, const void *data, size_t size, off_t at) {
    ORIGINAL(WriteAt, "pwrite64");
    return fails(descriptor, 0) ? -1 : original(descriptor, data, size, at);
}

ssize_t pwrite64(int descriptor, const void *data, size_t size, off64_t at) {
    ORIGINAL(WriteAt, "pwrite64");
    return fails(descriptor, 0) ? -1 : original(descriptor, data, size, at);
}

int fsync(int descriptor) {
    ORIGINAL(Sync, "fsync");
    return fails(descriptor, 1) ? -1 : original(descriptor);
}

int fdatasync(int descriptor) {
    ORIGINAL(Sync, "fdatasync");
    return fails(descriptor, 1) ? -1 : original(descriptor);
}
