using System;
using System.Collections.Generic;

class Work {
    static int Main() {
        var table = new Dictionary<int, string>();
        for (int n = 1; n <= 300000; n++) table[(int)((long)n * 7919 % 1000003)] = new string('v', n % 40);
        long sum = 0;
        foreach (var text in table.Values) sum += text.Length;
        Console.WriteLine("{0} {1}", table.Count, sum);
        return 5;
    }
}
