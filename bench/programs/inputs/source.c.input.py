"""A C file of 330 functions with loops, switches and structures."""

import sys

with open(sys.argv[1], "w") as out:
    out.write("typedef struct node { struct node *next; int key, value; double weight; } node;\n")
    for n in range(330):
        out.write(f"""
static int inner{n}(const node *list, int limit) {{
    int sum = {n};
    for (const node *at = list; at; at = at->next) {{
        switch (at->key & 7) {{
        case 0: sum += at->value * {n % 13 + 1}; break;
        case 1: sum ^= at->value << {n % 5}; break;
        case 2: if (at->weight > {n}.5) sum -= limit; break;
        case 3: sum = sum * 31 + at->key; break;
        default: sum += at->key % (limit + {n % 7 + 1});
        }}
    }}
    return sum;
}}
int outer{n}(node *list, int *table, int count) {{
    int best = 0;
    for (int i = 0; i < count; i++) {{
        table[i] = table[i] * {n + 3} + inner{n}(list, i);
        for (int j = i; j < count && table[j] > best; j += {n % 4 + 1}) best = table[j] - i;
    }}
    return best{f" + outer{n - 1}(list, table, count / 2)" if n else ""};
}}
""")
