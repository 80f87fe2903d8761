// program: JVM, garbage collection beside a live tree
// class: JVM
// version: java -version
// expect: 266336303

class JavaGarbage {
    static final class Tree {
        final Tree left, right;

        Tree(int depth) {
            left = depth == 0 ? null : new Tree(depth - 1);
            right = depth == 0 ? null : new Tree(depth - 1);
        }

        long count() {
            return left == null ? 1 : 1 + left.count() + right.count();
        }
    }

    public static void main(String[] arguments) throws Exception {
        Tree old = new Tree(21);
        Phases.steady();
        long total = 0;
        for (int i = 0; i < 2000; i++) {
            total += new Tree(16).count();
        }
        Phases.end(total + old.count());
    }
}
