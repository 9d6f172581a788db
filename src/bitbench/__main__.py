from bitbench.cli import main

main()
