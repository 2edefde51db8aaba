# The script of a template's interpreter. What an interpreter needs to compile a script it lets go of when that ends, which is
# in each forked process anew: so this one is short, and `boot.py`, which does everything, is compiled here.
with open("/proc/self/fd/6", "rb") as file:
    code = compile(file.read(), "boot.py", "exec")
exec(code, {"__name__": "boot"})
