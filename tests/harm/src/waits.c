// Computes, says that it is there, and waits for a line: usage: waits FIFO FILE.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int sum;

int value(int number) { return number * 3; }

int main(int argc, char **argv) {
    char *blocks[200];
    for (int at = 0; at < 200; at++) {
        blocks[at] = malloc(200000);
        memset(blocks[at], at, 200000);
        sum += blocks[at][at];
    }
    FILE *file = fopen(argv[2], "w");
    fprintf(file, "%d\n", getpid());
    fclose(file);
    char line[20];
    FILE *fifo = fopen(argv[1], "r");
    fgets(line, sizeof line, fifo);
    for (int at = 0; at < 200; at++) free(blocks[at]);
    printf("sum %d, value %d\n", sum, value(2));
    return 5;
}
