"""A program that doubles a number, in every language, with tests and limits for it."""

from dataclasses import replace

from verizero import sandbox

PYTHON = "print(int(input()) * 2)"
DOUBLE = {
    "c": '#include <stdio.h>\nint main() { int n; scanf("%d", &n); printf("%d\\n", 2 * n); }',
    "cpp": "#include <iostream>\nint main() { int n; std::cin >> n; std::cout << 2 * n << std::endl; }",
    "java": "import java.util.*;\npublic class Solution { public static void main(String[] a) {"
    " int n = new Scanner(System.in).nextInt(); System.out.println(2 * n); } }",
    "go": 'package main\nimport "fmt"\nfunc main() { var n int; fmt.Scan(&n); fmt.Println(2 * n) }',
    "rust": "use std::io;\nfn main() { let mut s = String::new(); io::stdin().read_line(&mut s).unwrap();"
    ' let n: i64 = s.trim().parse().unwrap(); println!("{}", 2 * n); }',
    "javascript": "const n = +require('fs').readFileSync(0, 'utf8'); console.log(2 * n);",
    "bash": "read n; echo $((2 * n))",
}
TESTS = [{"input": f"{i}\n", "output": f"{2 * i}\n"} for i in range(4)]
EMPTY = [{"input": "", "output": ""}]
LIMITS = sandbox.Limits(wall_s=120, cpu_s=30, memory_mib=512, processes=32)
TIGHT = replace(LIMITS, memory_mib=128, disk_mib=4)
