/* For LD_PRELOAD: appends what is asked of the kernel for the file WRITES_OF to the file WRITES_TO.
 *
 * A line for each call: "write", "write dsync" or "fdatasync". WRITES_REFUSE: a write with flags
 * fails, as on a file system that does not know them. WRITES_SHORT: a write takes so many bytes.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

static int is_watched(int descriptor) {
    char link[64], path[4096];
    const char *watched = getenv("WRITES_OF");
    snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length <= 0 || watched == NULL)
        return 0;
    path[length] = 0;
    return strcmp(path, watched) == 0;
}

static void note(const char *line) {
    int to = open(getenv("WRITES_TO"), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (to < 0 || write(to, line, strlen(line)) < 0)
        abort();
    close(to);
}

typedef ssize_t (*Write)(int, const struct iovec *, int, off64_t, int);

ssize_t pwritev64v2(int descriptor, const struct iovec *parts, int count, off64_t at, int flags) {
    Write original = (Write)dlsym(RTLD_NEXT, "pwritev64v2");
    if (!is_watched(descriptor))
        return original(descriptor, parts, count, at, flags);
    if (flags != 0 && getenv("WRITES_REFUSE") != NULL) {
        errno = EOPNOTSUPP;
        return -1;
    }
    note(flags & RWF_DSYNC ? "write dsync\n" : "write\n");
    const char *most = getenv("WRITES_SHORT");
    struct iovec first = parts[0];
    if (most == NULL)
        return original(descriptor, parts, count, at, flags);
    if (first.iov_len > (size_t)atol(most))
        first.iov_len = (size_t)atol(most);
    return original(descriptor, &first, 1, at, flags);
}

int fdatasync(int descriptor) {
    int (*original)(int) = (int (*)(int))dlsym(RTLD_NEXT, "fdatasync");
    if (is_watched(descriptor))
        note("fdatasync\n");
    return original(descriptor);
}
