/* A thread that writes files and never holds the interpreter's lock.
 *
 * A Python thread needs that lock to begin a call and to end it. While an event loop is busy, it
 * gives the lock away for microseconds at a time, in its system calls, and takes it back before a
 * waiting thread has woken up: a write of 0.2 ms was seen to take 200 ms (RFC 17).
 *
 * The interpreter's lock protects what Python calls. `mutex` protects the two queues, and is held
 * for a few instructions. A write keeps its buffers until `take` releases them.
 */
#define _FILE_OFFSET_BITS 64
#define _GNU_SOURCE
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/uio.h>
#include <unistd.h>

#include "native.h"

#define PARTS_MAX 1024 /* IOV_MAX of Linux */

typedef struct Write {
    struct Write *next;
    PyObject *token;
    Py_buffer *buffers;
    struct iovec *parts;
    Py_ssize_t held; /* buffers */
    int count;       /* parts that are not empty */
    int descriptor;
    int flags;
    int is_synced; /* by a sync of its own */
    off_t position;
    int error;
    int is_written; /* and its sync has failed */
} Write;

typedef struct {
    Write *first;
    Write *last;
} Queue;

/* The thread's as well as the object's; the one that ends last frees it. */
typedef struct {
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    Queue waiting;
    Queue written;
    int event;
    int is_ending;
    int owners;
} Shared;

typedef struct {
    PyObject_HEAD
    Shared *shared;
    pthread_t thread;
    pid_t process;
    int is_open;
    int is_joined;
} WriterThread;

static void put(Queue *queue, Write *write) {
    write->next = NULL;
    if (queue->last == NULL)
        queue->first = write;
    else
        queue->last->next = write;
    queue->last = write;
}

static Write *take_first(Queue *queue) {
    Write *write = queue->first;
    queue->first = write->next;
    if (queue->first == NULL)
        queue->last = NULL;
    return write;
}

/* Without the interpreter's lock from here to `main_of_thread`. */

static int write_parts(Write *write, int flags) {
    struct iovec *parts = write->parts;
    int count = write->count;
    off_t position = write->position;
    while (count > 0) {
        int most = count < PARTS_MAX ? count : PARTS_MAX;
        ssize_t done = pwritev2(write->descriptor, parts, most, position, flags);
        if (done < 0) {
            if (errno == EINTR)
                continue;
            return errno;
        }
        if (done == 0)
            return EIO; /* nothing but parts that are not empty is written */
        position += done;
        while (count > 0 && (size_t)done >= parts->iov_len) {
            done -= (ssize_t)parts->iov_len;
            parts++;
            count--;
        }
        if (done > 0) {
            parts->iov_base = (char *)parts->iov_base + done;
            parts->iov_len -= (size_t)done;
        }
    }
    return 0;
}

/* With flags: durable by them where one call is enough, else by a sync behind it. */
static int write_whole(Write *write) {
    int is_one_call = write->count <= PARTS_MAX;
    int error = write_parts(write, is_one_call ? write->flags : 0);
    if (error != 0)
        return error;
    write->is_written = 1;
    if (!write->is_synced && (write->flags == 0 || is_one_call))
        return 0;
    while (fdatasync(write->descriptor) < 0) {
        if (errno != EINTR)
            return errno;
    }
    return 0;
}

/* With the mutex. Cannot fail: the counter would have to be near 2^64. */
static void tell(Shared *shared) {
    uint64_t one = 1;
    ssize_t told = write(shared->event, &one, sizeof one);
    (void)told;
}

static void let_go(Shared *shared) {
    pthread_mutex_lock(&shared->mutex);
    int left = --shared->owners;
    pthread_mutex_unlock(&shared->mutex);
    if (left > 0)
        return;
    /* Writes that nobody took keep their buffers: nobody here may release them. */
    close(shared->event);
    pthread_cond_destroy(&shared->changed);
    pthread_mutex_destroy(&shared->mutex);
    free(shared);
}

static void *main_of_thread(void *argument) {
    Shared *shared = argument;
    pthread_mutex_lock(&shared->mutex);
    for (;;) {
        while (shared->waiting.first == NULL && !shared->is_ending)
            pthread_cond_wait(&shared->changed, &shared->mutex);
        if (shared->waiting.first == NULL)
            break;
        Write *next = take_first(&shared->waiting);
        pthread_mutex_unlock(&shared->mutex);
        next->error = write_whole(next);
        pthread_mutex_lock(&shared->mutex);
        int was_empty = shared->written.first == NULL;
        put(&shared->written, next);
        if (was_empty)
            tell(shared);
    }
    pthread_mutex_unlock(&shared->mutex);
    let_go(shared);
    return NULL;
}

/* With the interpreter's lock. */

static void free_write(Write *write) {
    for (Py_ssize_t index = 0; index < write->held; index++)
        PyBuffer_Release(&write->buffers[index]);
    free(write->buffers);
    free(write->parts);
    Py_XDECREF(write->token);
    free(write);
}

static int hold_parts(Write *write, PyObject *parts) {
    Py_ssize_t count = PySequence_Size(parts);
    if (count < 0)
        return -1;
    write->buffers = calloc((size_t)count + 1, sizeof *write->buffers);
    write->parts = calloc((size_t)count + 1, sizeof *write->parts);
    if (write->buffers == NULL || write->parts == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    for (Py_ssize_t index = 0; index < count; index++) {
        PyObject *part = PySequence_GetItem(parts, index);
        if (part == NULL)
            return -1;
        int failed = PyObject_GetBuffer(part, &write->buffers[index], PyBUF_SIMPLE);
        Py_DECREF(part);
        if (failed < 0)
            return -1;
        write->held++;
        if (write->buffers[index].len == 0)
            continue;
        write->parts[write->count].iov_base = write->buffers[index].buf;
        write->parts[write->count].iov_len = (size_t)write->buffers[index].len;
        write->count++;
    }
    return 0;
}

static int begin_thread(WriterThread *self, Shared *shared) {
    /* The signals of the process are the other threads'. */
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = pthread_create(&self->thread, NULL, main_of_thread, shared);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return error;
}

static PyObject *writer_new(PyTypeObject *type, PyObject *arguments, PyObject *keywords) {
    static char *names[] = {NULL};
    if (!PyArg_ParseTupleAndKeywords(arguments, keywords, ":WriterThread", names))
        return NULL;
    WriterThread *self = (WriterThread *)PyType_GenericAlloc(type, 0);
    if (self == NULL)
        return NULL;
    Shared *shared = calloc(1, sizeof *shared);
    if (shared == NULL) {
        Py_DECREF(self);
        return PyErr_NoMemory();
    }
    shared->event = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (shared->event < 0) {
        free(shared);
        Py_DECREF(self);
        return PyErr_SetFromErrno(PyExc_OSError);
    }
    pthread_mutex_init(&shared->mutex, NULL);
    pthread_cond_init(&shared->changed, NULL);
    shared->owners = 2;
    int error = begin_thread(self, shared);
    if (error != 0) {
        shared->owners = 1;
        let_go(shared);
        Py_DECREF(self);
        errno = error;
        return PyErr_SetFromErrno(PyExc_OSError);
    }
    self->shared = shared;
    self->process = getpid();
    self->is_open = 1;
    return (PyObject *)self;
}

/* Whether the thread is this process's: it does not outlive a fork. */
static int check_open(WriterThread *self) {
    if (self->is_open && self->process == getpid())
        return 0;
    PyErr_SetString(PyExc_ValueError, "the writer thread has ended");
    return -1;
}

static PyObject *writer_submit(PyObject *object, PyObject *arguments) {
    WriterThread *self = (WriterThread *)object;
    int descriptor, flags, is_synced;
    long long position;
    PyObject *parts, *token;
    if (!PyArg_ParseTuple(arguments, "iLOipO:submit", &descriptor, &position, &parts, &flags,
                          &is_synced, &token))
        return NULL;
    if (check_open(self) < 0)
        return NULL;
    Write *write = calloc(1, sizeof *write);
    if (write == NULL)
        return PyErr_NoMemory();
    /* A sequence of its own kind may have closed the thread. */
    if (hold_parts(write, parts) < 0 || check_open(self) < 0) {
        free_write(write);
        return NULL;
    }
    write->descriptor = descriptor;
    write->position = (off_t)position;
    write->flags = flags;
    write->is_synced = is_synced;
    Py_INCREF(token);
    write->token = token;
    Shared *shared = self->shared;
    pthread_mutex_lock(&shared->mutex);
    put(&shared->waiting, write);
    pthread_cond_signal(&shared->changed);
    pthread_mutex_unlock(&shared->mutex);
    Py_RETURN_NONE;
}

static PyObject *took(Write *write) {
    return Py_BuildValue("(OiO)", write->token, write->error,
                         write->is_written ? Py_True : Py_False);
}

/* Puts writes back in front of those that have ended since. */
static void put_back(Shared *shared, Write *first) {
    Write *last = first;
    while (last->next != NULL)
        last = last->next;
    pthread_mutex_lock(&shared->mutex);
    last->next = shared->written.first;
    if (shared->written.first == NULL)
        shared->written.last = last;
    shared->written.first = first;
    tell(shared);
    pthread_mutex_unlock(&shared->mutex);
}

/* What there is no memory to tell is told at the next call: somebody waits for each of them. */
static PyObject *taken(Shared *shared) {
    PyObject *all = PyList_New(0);
    if (all == NULL)
        return NULL;
    pthread_mutex_lock(&shared->mutex);
    Write *write = shared->written.first;
    shared->written.first = shared->written.last = NULL;
    pthread_mutex_unlock(&shared->mutex);
    while (write != NULL) {
        Write *next = write->next;
        PyObject *one = took(write);
        int failed = one == NULL || PyList_Append(all, one) < 0;
        Py_XDECREF(one);
        if (failed) {
            put_back(shared, write);
            if (PyList_Size(all) == 0) {
                Py_DECREF(all);
                return NULL;
            }
            PyErr_Clear();
            break;
        }
        free_write(write);
        write = next;
    }
    return all;
}

static PyObject *writer_take(PyObject *object, PyObject *unused) {
    (void)unused;
    WriterThread *self = (WriterThread *)object;
    if (check_open(self) < 0)
        return NULL;
    uint64_t count;
    /* Before the look: a write that ends behind it makes the descriptor readable again. */
    ssize_t got = read(self->shared->event, &count, sizeof count);
    PyObject *all = taken(self->shared);
    if (all == NULL && got > 0) {
        pthread_mutex_lock(&self->shared->mutex);
        tell(self->shared);
        pthread_mutex_unlock(&self->shared->mutex);
    }
    return all;
}

/* The thread ends when it has written what waits. */
static void end_thread(WriterThread *self) {
    Shared *shared = self->shared;
    pthread_mutex_lock(&shared->mutex);
    shared->is_ending = 1;
    pthread_cond_signal(&shared->changed);
    pthread_mutex_unlock(&shared->mutex);
    self->is_open = 0;
}

static PyObject *writer_close(PyObject *object, PyObject *unused) {
    (void)unused;
    WriterThread *self = (WriterThread *)object;
    if (self->shared == NULL || self->process != getpid())
        Py_RETURN_NONE;
    if (self->is_open) {
        end_thread(self);
        Py_BEGIN_ALLOW_THREADS
        pthread_join(self->thread, NULL);
        Py_END_ALLOW_THREADS
        self->is_joined = 1;
    }
    if (!self->is_joined)
        Py_RETURN_NONE; /* another call waits for the thread */
    PyObject *all = taken(self->shared);
    if (all != NULL && self->shared->written.first == NULL) {
        let_go(self->shared);
        self->shared = NULL;
    }
    return all;
}

static void writer_dealloc(PyObject *object) {
    WriterThread *self = (WriterThread *)object;
    PyTypeObject *type = Py_TYPE(object);
    Shared *shared = self->shared;
    if (shared != NULL && self->process == getpid()) {
        /* Nobody waits here: the disk may hang. A forked child has no thread to end. */
        if (self->is_open) {
            end_thread(self);
            pthread_detach(self->thread);
        }
        pthread_mutex_lock(&shared->mutex);
        Write *write = shared->written.first;
        shared->written.first = shared->written.last = NULL;
        pthread_mutex_unlock(&shared->mutex);
        let_go(shared);
        while (write != NULL) {
            Write *next = write->next;
            free_write(write);
            write = next;
        }
    }
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(object);
    Py_DECREF(type);
}

static PyObject *writer_fileno(PyObject *object, PyObject *unused) {
    (void)unused;
    WriterThread *self = (WriterThread *)object;
    if (check_open(self) < 0)
        return NULL;
    return PyLong_FromLong(self->shared->event);
}

static PyMethodDef writer_methods[] = {
    {"submit", writer_submit, METH_VARARGS,
     "submit(descriptor, position, parts, flags, is_synced, token): writes behind what was submitted "
     "before; durable with RWF_DSYNC among the flags, or a sync behind it."},
    {"take", writer_take, METH_NOARGS,
     "[(token, errno or 0, whether it was written)] of the writes that have ended."},
    {"fileno", writer_fileno, METH_NOARGS, "Readable when there is something to take."},
    {"close", writer_close, METH_NOARGS,
     "Waits for what was submitted, and returns what was not taken; None: nothing is left."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot writer_slots[] = {
    {Py_tp_doc, "A thread that writes files, one write after another, without the interpreter."},
    {Py_tp_new, writer_new},
    {Py_tp_dealloc, writer_dealloc},
    {Py_tp_methods, writer_methods},
    {0, NULL},
};

static PyType_Spec writer_spec = {
    .name = "streamlog.runtime._native.WriterThread",
    .basicsize = sizeof(WriterThread),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = writer_slots,
};

static PyMethodDef functions[] = {
    {"read_now", read_now, METH_VARARGS,
     "read_now(descriptor, position, length): bytes, or None where the page cache lacks any."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "streamlog.runtime._native",
    .m_doc = "Disk work in C.",
    .m_size = -1,
    .m_methods = functions,
};

PyMODINIT_FUNC PyInit__native(void) {
    PyObject *module = PyModule_Create(&definition);
    if (module == NULL)
        return NULL;
    PyObject *type = PyType_FromSpec(&writer_spec);
    if (type == NULL || PyModule_AddType(module, (PyTypeObject *)type) < 0) {
        Py_XDECREF(type);
        Py_DECREF(module);
        return NULL;
    }
    Py_DECREF(type);
    return module;
}
