// Reads a file into registered buffers of the heap by io_uring: usage: uring FILE BUFFERS.
#include <fcntl.h>
#include <liburing.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SIZE = 16384, BLOCKS = 2000 };

int main(int argc, char **argv) {
    int file = open(argv[1], O_RDONLY), count = atoi(argv[2]);
    char **blocks = malloc(BLOCKS * sizeof *blocks);
    for (int at = 0; at < BLOCKS; at++) {
        blocks[at] = aligned_alloc(4096, SIZE);
        memset(blocks[at], at, SIZE);
    }
    struct io_uring ring;
    int error = io_uring_queue_init(8, &ring, 0);
    if (error) {
        printf("queue_init: %s\n", strerror(-error));
        return 2;
    }
    struct iovec *buffers = calloc((size_t)count, sizeof *buffers);
    for (int at = 0; at < count; at++)
        buffers[at] = (struct iovec){blocks[(at + 1) * (BLOCKS / (count + 1))], SIZE};
    error = io_uring_register_buffers(&ring, buffers, (unsigned)count);
    printf("%d buffers: %s\n", count, error ? strerror(-error) : "registered");
    if (error) return 1;
    unsigned long sum = 0;
    for (int at = 0; at < count; at++) {
        struct io_uring_cqe *done;
        io_uring_prep_read_fixed(io_uring_get_sqe(&ring), file, buffers[at].iov_base, SIZE, (unsigned long)at * SIZE, at);
        io_uring_submit(&ring);
        if (io_uring_wait_cqe(&ring, &done)) return 3;
        for (int byte = 0; byte < done->res; byte++) sum += ((unsigned char *)buffers[at].iov_base)[byte];
        io_uring_cqe_seen(&ring, done);
    }
    printf("sum %lu\n", sum);
    return 0;
}
