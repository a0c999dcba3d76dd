"""The measurements, one module each: rows chosen beforehand, a runner asked, raw figures turned into results."""
