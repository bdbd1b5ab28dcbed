/* For LD_PRELOAD: every sync takes SLOW_SYNC_US microseconds more, as on a disk behind a network.
 *
 * Syncs are fsync, fdatasync, and writes with RWF_DSYNC or RWF_SYNC. The caller sleeps after the
 * call itself, so that syncs of several threads wait beside each other. Neither node nor Kafka opens
 * files with O_DSYNC. SLOW_SYNC_COUNT names a file of 8 bytes: how many syncs were slower so far,
 * of the process and its children.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#define REAL(name) ((typeof(&name))real(#name))

static uint64_t here;
static uint64_t *count = &here;
static struct timespec delay;

static void *real(const char *name) {
    void *found = dlsym(RTLD_NEXT, name);
    if (found == NULL)
        abort();
    return found;
}

__attribute__((constructor)) static void begin(void) {
    const char *us = getenv("SLOW_SYNC_US"), *path = getenv("SLOW_SYNC_COUNT");
    long wanted = us == NULL ? 0 : atol(us);
    delay = (struct timespec){wanted / 1000000, wanted % 1000000 * 1000};
    int fd = path == NULL ? -1 : open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0)
        return;
    void *shared = mmap(NULL, sizeof here, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (shared != MAP_FAILED)
        count = shared;
}

/* errno stays the call's. */
static void wait_longer(void) {
    int saved = errno;
    struct timespec left = delay;
    __atomic_add_fetch(count, 1, __ATOMIC_RELAXED);
    while (nanosleep(&left, &left) != 0 && errno == EINTR)
        ;
    errno = saved;
}

int fsync(int fd) {
    int result = REAL(fsync)(fd);
    wait_longer();
    return result;
}

int fdatasync(int fd) {
    int result = REAL(fdatasync)(fd);
    wait_longer();
    return result;
}

ssize_t pwritev2(int fd, const struct iovec *parts, int n, off_t at, int flags) {
    ssize_t result = REAL(pwritev2)(fd, parts, n, at, flags);
    if (flags & (RWF_DSYNC | RWF_SYNC))
        wait_longer();
    return result;
}

ssize_t pwritev64v2(int fd, const struct iovec *parts, int n, off64_t at, int flags) {
    ssize_t result = REAL(pwritev64v2)(fd, parts, n, at, flags);
    if (flags & (RWF_DSYNC | RWF_SYNC))
        wait_longer();
    return result;
}
